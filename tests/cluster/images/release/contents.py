"""What is in an image, read from its archive: Debian's packages, Python's, and those that CRIU's folder is made of."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.utils import canonicalize_name

_DPKG_STATUS = "var/lib/dpkg/status"
_FIELDS = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
_INSTALLED = re.compile(r"usr/local/lib/python3[.]\d+/dist-packages/([^/]+)-([^/-]+)[.]dist-info/METADATA")
_TOOLCHAIN = re.compile(r"usr/local/lib/cedana-sched/criu-[^/]+/toolchain[.]json")


class Package(NamedTuple):
    """One package in its version."""

    name: str
    version: str


@dataclass
class Contents:
    """All of it; paths are read from the last layer that has them."""

    digest: str
    """SHA-256 of the archive."""
    created: str
    """When the image was built, in RFC 3339."""
    layers: list[str]
    """SHA-256 of each layer, the base first."""
    architecture: str = ""
    """As dpkg says it."""
    debian: set[Package] = field(default_factory=set)
    python: set[Package] = field(default_factory=set)
    criu: dict[Package, str] = field(default_factory=dict)
    """Debian's too, of the suite that CRIU comes from, each laid into CRIU's folder as far as CRIU needs it, and the
    SHA-256 of its file."""


class _Manifest(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str]


class _RootFs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    created: str
    rootfs: _RootFs


class _Toolchain(msgspec.Struct):
    packages: dict[str, str]
    digests: dict[str, str]


def contents_of(archive: Path) -> Contents:
    """Read an archive in the format of `docker save`."""
    with archive.open("rb") as file, tarfile.open(fileobj=file) as outer:
        [manifest] = msgspec.json.decode(_read(outer, "manifest.json"), type=list[_Manifest])
        config = msgspec.json.decode(_read(outer, manifest.config), type=_Config)
        layers = [layer.removeprefix("sha256:") for layer in config.rootfs.diff_ids]
        file.seek(0)
        contents = Contents(hashlib.file_digest(file, "sha256").hexdigest(), config.created, layers)
        for name in manifest.layers:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                _note(contents, layer)
    return contents


def _note(contents: Contents, layer: tarfile.TarFile) -> None:
    for member in layer:
        path = member.name.removeprefix("./")
        if path == _DPKG_STATUS:
            text = _read(layer, member).decode()
            contents.debian = set(_installed(text))
            contents.architecture = re.findall(r"^Architecture: (?!all$)(.*)$", text, re.MULTILINE)[0]
        elif found := _INSTALLED.fullmatch(path):
            contents.python.add(Package(canonicalize_name(found[1]), found[2]))
        elif _TOOLCHAIN.fullmatch(path):
            toolchain = msgspec.json.decode(_read(layer, member), type=_Toolchain)
            contents.criu = {Package(*each): toolchain.digests[each[0]] for each in toolchain.packages.items()}


def _installed(status: str) -> Iterator[Package]:
    for paragraph in status.split("\n\n"):
        fields = dict(_FIELDS.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            yield Package(fields["Package"], fields["Version"])


def _read(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise tarfile.ReadError(f"{member} is no file")
    return file.read()
