"""Debian's packages in an image, each with the digest of its package file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packageurl import PackageURL

from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite
from cedana_sched.snapshot.package_pins import read_pins
from cedana_sched.snapshot.packages import SUITE as SUITE_OF_CRIU
from tests.cluster.cache import cache_dir
from tests.cluster.debian import SUITE
from tests.cluster.errors import ClusterError
from tests.cluster.images.release.contents import Contents, Package


class DebianPackage(NamedTuple):
    """A package by its address, and the SHA-256 of its file."""

    package: Package
    address: PackageURL
    sha256: str


def debian_packages(
    contents: Contents, served: Mapping[Package, str], pinned: Mapping[Package, str]
) -> Iterator[DebianPackage]:
    """Yield all of them, those that CRIU is made from last.

    Args:
        contents: of the image.
        served: what the suite of the image has, by `served_digests`.
        pinned: what CRIU is to be made from, by `pinned_digests`.

    Raises:
        ClusterError: a package is in the image that its suite does not have, so that nobody vouches for it any more, or
            CRIU is made from others than the pinned packages.
    """
    for package in sorted(contents.debian):
        if package not in served:
            raise ClusterError(
                f"{package.name} {package.version} is in an image, and not in what Debian {SUITE} has signed today",
                remedy=f"the image is made from a root that has become old: delete base-root-*, image-storage-* and "
                f"images in {cache_dir()}, and build it again",
            )
        yield DebianPackage(package, _address(package, contents, SUITE), served[package])
    for package in sorted(contents.criu):
        if pinned.get(package) != contents.criu[package]:
            raise ClusterError(
                f"CRIU in an image is made from {package.name} {package.version}, which is not pinned",
                remedy="pin what Debian testing has now with 'make pin', and build the image again",
            )
        yield DebianPackage(package, _address(package, contents, SUITE_OF_CRIU), contents.criu[package])


def served_digests(packages: set[Package]) -> dict[Package, str]:
    """Look up what the suite of images has of these packages today, whichever version that is, as Debian has signed it.

    Raises:
        ClusterError: the suite cannot be read, or has one of them in no version.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            suite = DebianSuite(SUITE, Path(folder, "apt"))
            found = suite.look_up_packages(*sorted({package.name for package in packages}))
    except DebianPackagesError as error:
        raise ClusterError(error.message, remedy=error.remedy) from error
    return {Package(each.name, each.version): each.sha256 for each in found}


def pinned_digests(architecture: str) -> dict[Package, str]:
    """Return the digests of the packages that CRIU is to be made from; none are pinned for some architectures."""
    pins = read_pins(architecture)
    return {Package(each.name, each.version): each.sha256 for each in pins.packages} if pins is not None else {}


def _address(package: Package, contents: Contents, suite: str) -> PackageURL:
    return PackageURL("deb", "debian", *package, {"arch": contents.architecture, "distro": suite})
