"""What an image was made of, and by what: a statement of in-toto with the predicate of SLSA. Nobody signs it here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tests.cluster.debian import SUITE
from tests.cluster.images.catalog import Image
from tests.cluster.images.release.contents import Contents
from tests.cluster.images.release.debian_packages import DebianPackage

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:cedana-sched:containerfile:v1"
BUILDER: Final = "urn:cedana-sched:make-images"
"""Whoever calls `make images`: who that is, a signature says."""
BASE: Final = f"root of Debian {SUITE}, made by debootstrap"
"""What the images begin with here: no registry's image, but packages of Debian, which are named as well."""


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something, by its digest."""

    name: str
    digest: dict[str, str]
    uri: str = ""
    """A package's address (purl)."""


class _Definition(msgspec.Struct, frozen=True, rename="camel"):
    build_type: str
    external_parameters: dict[str, str]
    resolved_dependencies: list[Resource]


class _Builder(msgspec.Struct, frozen=True):
    id: str


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    finished_on: str


class _Details(msgspec.Struct, frozen=True):
    builder: _Builder
    metadata: _Metadata


class Predicate(msgspec.Struct, frozen=True, rename="camel"):
    """How it was built."""

    build_definition: _Definition
    run_details: _Details


class Statement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is said of which archive."""

    kind: str = msgspec.field(name="_type", default=STATEMENT)
    subject: list[Resource]
    predicate_type: str = PREDICATE
    predicate: Predicate


def provenance(image: Image, contents: Contents, debian: Iterable[DebianPackage], commit: str) -> bytes:
    """Return the statement for an archive that was built from a commit of the repository."""
    requirements = [Resource(_inside(image, path), _sha256(path.read_bytes())) for path in image.requirements]
    base = Resource(BASE, {"sha256": contents.layers[0]})  # its only layer
    packages = [Resource(each.package.name, {"sha256": each.sha256}, each.address.to_string()) for each in debian]
    definition = _Definition(
        BUILD_TYPE,
        {"containerfile": _inside(image, image.containerfile), "tag": image.tag},
        [Resource("source", {"gitCommit": commit}), base, *requirements, *packages],
    )
    details = _Details(_Builder(BUILDER), _Metadata(contents.created))
    archive = Resource(image.tag, {"sha256": contents.digest})
    statement = Statement(subject=[archive], predicate=Predicate(definition, details))
    return msgspec.json.format(msgspec.json.encode(statement), indent=2)


def _inside(image: Image, path: Path) -> str:
    return str(path.relative_to(image.context))


def _sha256(content: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(content).hexdigest()}
