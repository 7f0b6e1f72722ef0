"""Pins the packages that CRIU is made from as Debian testing has them now, for this machine's architecture.

`make pin` calls it; it writes `cedana_sched/snapshot/criu-packages.json`. Nothing of it is tested by that: `make test`
makes CRIU from the new packages.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path

from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite, machine_architecture
from cedana_sched.snapshot.packages import SUITE, served_packages
from cedana_sched.snapshot.pins import PINS, Pins, write_pins

_ARCHIVE = "https://snapshot.debian.org/archive/debian"


def archive_of(date: datetime) -> str:
    """Base address of the archive of all that Debian ever published, as it was then or last before (UTC).

    A package is in another suite for days before it comes into testing, and so it is there by then.
    """
    return f"{_ARCHIVE}/{date:%Y%m%dT%H%M%SZ}"


def main() -> int:
    try:
        with tempfile.TemporaryDirectory() as folder:
            suite = DebianSuite(SUITE, Path(folder, "apt"))
            packages = sorted(served_packages(suite), key=lambda package: package.name)
            date = suite.date
    except DebianPackagesError as error:
        print(error, *error.evidence, sep="\n", file=sys.stderr)
        return 1
    write_pins(machine_architecture(), Pins(archive_of(date), tuple(packages)))
    print(f"{len(packages)} packages of Debian {SUITE} of {date:%Y-%m-%d} are pinned in {PINS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
