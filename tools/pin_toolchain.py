"""Pins the packages of the CRIU toolchain to Debian testing's current versions, for this machine's architecture.

The command of `make pin`; writes `cedana_sched/snapshot/criu-packages.json`. The new pins are not tested here:
`make test` builds CRIU from the new packages.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path

from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite, machine_architecture
from cedana_sched.snapshot.package_pins import PINS, PackagePins, write_pins
from cedana_sched.snapshot.packages import SUITE, current_packages_of

_ARCHIVE = "https://snapshot.debian.org/archive/debian"


def archive_of(date: datetime) -> str:
    """Return the URL of Debian's package archive, in its newest state at or before `date` (UTC).

    The archive has every package of testing by then, because a package is in another suite for days before testing.
    """
    return f"{_ARCHIVE}/{date:%Y%m%dT%H%M%SZ}"


def main() -> int:
    try:
        with tempfile.TemporaryDirectory() as folder:
            suite = DebianSuite(SUITE, Path(folder, "apt"))
            packages = sorted(current_packages_of(suite), key=lambda package: package.name)
            date = suite.index_date
    except DebianPackagesError as error:
        print(error, *error.evidence, sep="\n", file=sys.stderr)
        return 1
    write_pins(machine_architecture(), PackagePins(archive_of(date), tuple(packages)))
    print(f"{len(packages)} packages of Debian {SUITE} of {date:%Y-%m-%d} are pinned in {PINS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
