"""Pinned Debian packages of CRIU: their versions and digests, as tested with this version.

`criu-packages.json` has them for each supported architecture of Debian. `make pin` rewrites it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cedana_sched.snapshot.debian import Package

PINS = Path(__file__).with_name("criu-packages.json")


class PackagePins(msgspec.Struct, frozen=True):
    """The packages for one architecture."""

    archive: str
    """Base URL of an archive that keeps all their files, even when the suite has newer ones."""
    packages: tuple[Package, ...]

    @property
    def identity(self) -> str:
        """See `identity_of_packages`."""
        return identity_of_packages(self.packages)


def identity_of_packages(packages: Iterable[Package]) -> str:
    """Return one short name for these packages in these versions, of hexadecimal digits."""
    lines = sorted(f"{package.name} {package.version} {package.sha256}" for package in packages)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def read_pins(architecture: str, file: Path = PINS) -> PackagePins | None:
    """Return the packages for an architecture, or None if none are pinned for it."""
    return _read(file).get(architecture)


def pinned_identities(file: Path = PINS) -> frozenset[str]:
    """Return the `identity` of the packages for each architecture."""
    return frozenset(pins.identity for pins in _read(file).values())


def write_pins(architecture: str, pins: PackagePins, file: Path = PINS) -> None:
    """Replace the packages of one architecture; others stay."""
    everything = (_read(file) if file.exists() else {}) | {architecture: pins}
    text = msgspec.json.format(msgspec.json.encode(everything, order="deterministic"))
    file.write_bytes(text + b"\n")


def _read(file: Path) -> dict[str, PackagePins]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, PackagePins])
