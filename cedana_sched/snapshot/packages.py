"""Obtains CRIU's package files: the pinned ones, or today's if those are unavailable.

A pinned file is verified by its digest. The file is downloaded from the machine's own mirror while that has it, and
from the archive of everything that Debian ever published once the suite has moved on. Today's packages of the suite are
verified by the signatures of Debian's archive: they are untested with this version, but authentic.
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
    expand_mirror_lists,
    machine_architecture,
    require_tools,
)
from cedana_sched.snapshot.package_pins import PackagePins, read_pins

SUITE = "testing"
_PROGRAMS = ("criu", "nftables", "tini-static")

Progress = Callable[[str], None]
"""Receives one short sentence on the current step, for a waiting user."""


@dataclass(frozen=True)
class ObtainedPackages:
    """Package files with their packages."""

    packages: Sequence[Package]
    files: Sequence[Path]


def obtain_packages(work: Path, progress: Progress, *, only_pinned: bool) -> ObtainedPackages:
    """Download the packages for this machine's architecture into a folder, which is created.

    Args:
        work: that folder.
        progress: called at the start of each step, and when other packages are used than the pinned ones.
        only_pinned: accept no other packages.

    Raises:
        DebianPackagesError: the packages are unavailable; with names and reason.
    """
    require_tools()
    try:
        return _obtain_pinned(work / "pinned", progress)
    except DebianPackagesError as error:
        if only_pinned:
            raise
        progress(f"{error.message}: what Debian {SUITE} has today is taken, verified by Debian's signatures")
    return _obtain_current(work, progress)


def fetch_pinned(pins: PackagePins, mirrors: Sequence[str], into: Path) -> ObtainedPackages:
    """Download pinned packages from the first of the mirrors that has them, else from the archive.

    Raises:
        DebianPackagesError: naming the first package that none of them has as pinned.
    """
    missing, errors = list(pins.packages), []
    for mirror in mirrors:
        if missing:
            errors += download_from(mirror, missing, into)
            missing = [package for package in missing if not package.is_downloaded_in(into)]
    for package in missing:  # one by one: an unavailable archive costs one timeout, not thirty
        refused = download_from(pins.archive, [package], into)
        if not package.is_downloaded_in(into):
            raise _missing_package_error(
                package, pins, [line for line in errors + refused if f"/{package.name}_" in line] or refused
            )
    return ObtainedPackages(pins.packages, [package.download_path_in(into) for package in pins.packages])


def current_packages_of(suite: DebianSuite) -> list[Package]:
    """Return all packages for CRIU, as a suite has them today.

    Raises:
        DebianPackagesError: naming those that the suite does not serve.
    """
    packages = suite.look_up_packages(*_PROGRAMS, "python3-pycriu")  # first, to name what is not served
    libraries = [name for name in suite.names_with_dependencies(*_PROGRAMS) if name.startswith("lib")]
    return packages + suite.look_up_packages(*libraries)


def _obtain_pinned(work: Path, progress: Progress) -> ObtainedPackages:
    architecture = machine_architecture()
    pins = read_pins(architecture)
    if pins is None:
        raise DebianPackagesError(
            f"no packages of CRIU are pinned for the architecture {architecture}",
            remedy="pin them on such a machine, with 'make pin'",
        )
    progress(f"downloading CRIU and its libraries ({len(pins.packages)} packages)")
    return fetch_pinned(pins, expand_mirror_lists(debian_mirrors()), work)


def _obtain_current(work: Path, progress: Progress) -> ObtainedPackages:
    progress(f"reading the package index of Debian {SUITE}")
    suite = DebianSuite(SUITE, work / "apt")
    packages = current_packages_of(suite)
    progress(f"downloading CRIU and its libraries ({len(packages)} packages)")
    return ObtainedPackages(packages, suite.download(packages, work / "served"))


def _missing_package_error(package: Package, pins: PackagePins, errors: Sequence[str]) -> DebianPackagesError:
    return DebianPackagesError(
        f"package {package.name} {package.version}, which is pinned, can be had neither from this machine's Debian "
        f"mirror nor from {pins.archive}",
        remedy="let this machine reach that archive, or pin what Debian has today with 'make pin'",
        evidence=tuple(errors),
    )
