"""Which of Debian's packages CRIU is made from: their versions and digests, as this version was tested with them.

They stand in `criu-packages.json`, for each of Debian's architectures that is supported. `make pin` writes them anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cedana_sched.snapshot.debian import Package

PINS = Path(__file__).with_name("criu-packages.json")


class Pins(msgspec.Struct, frozen=True):
    """The packages for one architecture."""

    archive: str
    """Base address of an archive that keeps all their files, also when the suite has newer ones."""
    packages: tuple[Package, ...]

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return identity_of(self.packages)


def identity_of(packages: Iterable[Package]) -> str:
    """One short name for these packages in these versions, of hexadecimal digits."""
    lines = sorted(f"{package.name} {package.version} {package.sha256}" for package in packages)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def read_pins(architecture: str, file: Path = PINS) -> Pins | None:
    """The packages for an architecture, or None where nobody has pinned any for it."""
    return _read(file).get(architecture)


def pinned_identities(file: Path = PINS) -> frozenset[str]:
    """The `identity` of the packages for each architecture."""
    return frozenset(pins.identity for pins in _read(file).values())


def write_pins(architecture: str, pins: Pins, file: Path = PINS) -> None:
    """Replace those of one architecture, and leave others as they are."""
    everything = (_read(file) if file.exists() else {}) | {architecture: pins}
    text = msgspec.json.format(msgspec.json.encode(everything, order="deterministic"))
    file.write_bytes(text + b"\n")


def _read(file: Path) -> dict[str, Pins]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Pins])
