"""Gets the package files that CRIU is made from: those that are pinned, or, where they cannot be had, today's.

A pinned file is verified by its digest. It comes from the machine's own mirror as long as that has it, and from the
archive of all that Debian ever published once the suite has moved on. What is in the suite today is verified by the
signatures of Debian's archive: nobody has tested it with this version, but nobody else has made it either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cedana_sched.snapshot.debian import (
    DebianPackagesError,
    DebianSuite,
    Package,
    debian_mirrors,
    download_from,
    machine_architecture,
    plain_addresses,
    require_tools,
)
from cedana_sched.snapshot.pins import Pins, read_pins

SUITE = "testing"
_PROGRAMS = ("criu", "nftables", "tini-static")

Progress = Callable[[str], None]
"""Called with one short sentence on what is being done, for a person who waits."""


@dataclass(frozen=True)
class Obtained:
    """Package files, and what they are."""

    packages: Sequence[Package]
    files: Sequence[Path]


def obtain_packages(work: Path, progress: Progress, *, only_pinned: bool) -> Obtained:
    """Download into a folder, which is made, the packages for this machine's architecture.

    Args:
        work: that folder.
        progress: called when something begins, and when other packages are taken than the pinned ones.
        only_pinned: no other packages will do.

    Raises:
        DebianPackagesError: they cannot be had; says which and why.
    """
    require_tools()
    try:
        return _pinned(work / "pinned", progress)
    except DebianPackagesError as error:
        if only_pinned:
            raise
        progress(f"{error.message}: what Debian {SUITE} has today is taken, verified by Debian's signatures")
    return _served(work, progress)


def fetch_pinned(pins: Pins, mirrors: Sequence[str], into: Path) -> Obtained:
    """Download pinned packages from the first of the mirrors that has them, else from the archive.

    Raises:
        DebianPackagesError: naming the first package that none of them has as it is pinned.
    """
    missing, said = list(pins.packages), []
    for mirror in mirrors:
        if missing:
            said += download_from(mirror, missing, into)
            missing = [package for package in missing if not package.is_in(into)]
    for package in missing:  # one by one: where the archive does not answer, nobody waits for it thirty times
        refused = download_from(pins.archive, [package], into)
        if not package.is_in(into):
            raise _neither_has(
                package, pins, [line for line in said + refused if f"/{package.name}_" in line] or refused
            )
    return Obtained(pins.packages, [package.file_in(into) for package in pins.packages])


def served_packages(suite: DebianSuite) -> list[Package]:
    """All that CRIU is made from, as a suite has it today.

    Raises:
        DebianPackagesError: naming those that the suite does not serve.
    """
    packages = suite.packages(*_PROGRAMS, "python3-pycriu")  # first, to name what is not served
    libraries = [name for name in suite.closure(*_PROGRAMS) if name.startswith("lib")]
    return packages + suite.packages(*libraries)


def _pinned(work: Path, progress: Progress) -> Obtained:
    architecture = machine_architecture()
    pins = read_pins(architecture)
    if pins is None:
        raise DebianPackagesError(
            f"no packages of CRIU are pinned for the architecture {architecture}",
            remedy="pin them on such a machine, with 'make pin'",
        )
    progress(f"downloading CRIU and its libraries ({len(pins.packages)} packages)")
    return fetch_pinned(pins, plain_addresses(debian_mirrors()), work)


def _served(work: Path, progress: Progress) -> Obtained:
    progress(f"reading the package index of Debian {SUITE}")
    suite = DebianSuite(SUITE, work / "apt")
    packages = served_packages(suite)
    progress(f"downloading CRIU and its libraries ({len(packages)} packages)")
    return Obtained(packages, suite.download(packages, work / "served"))


def _neither_has(package: Package, pins: Pins, said: Sequence[str]) -> DebianPackagesError:
    return DebianPackagesError(
        f"package {package.name} {package.version}, which is pinned, can be had neither from this machine's Debian "
        f"mirror nor from {pins.archive}",
        remedy="let this machine reach that archive, or pin what Debian has today with 'make pin'",
        evidence=tuple(said),
    )
