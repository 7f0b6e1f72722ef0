"""What is in an image, in the words that scanners of vulnerabilities read: a bill of materials by CycloneDX."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import cedana_sched
from tests.cluster.errors import ClusterError
from tests.cluster.images.archive import file_name
from tests.cluster.images.buildah import PYTHON
from tests.cluster.images.catalog import Image
from tests.cluster.images.release.contents import Contents, Package
from tests.cluster.images.release.debian_packages import DebianPackage
from tests.cluster.images.requirements import for_python

_PINNED = re.compile(r"^([a-z0-9.-]+)(?:\[[^]]*\])?==(\S+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)
_PRODUCT = Package("cedana-sched", cedana_sched.__version__)
_DISTRIBUTIONS = re.compile(r"sha256:([0-9a-f]{64})")


def bill_of_materials(image: Image, contents: Contents, debian: Iterable[DebianPackage]) -> str:
    """Return the document, the same for the same archive.

    Raises:
        ClusterError: a Python package is in the image that no requirements file pins.
    """
    whole = Component(
        name=file_name(image.tag), version=cedana_sched.__version__, type=ComponentType.CONTAINER, bom_ref=image.tag,
        hashes=[_sha256(contents.digest)],
    )  # fmt: skip
    metadata = BomMetaData(component=whole, timestamp=datetime.fromisoformat(contents.created))
    parts = [*_python(image, contents), *(_component(each.package, each.address, [each.sha256]) for each in debian)]
    bom = Bom(metadata=metadata, components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, contents.digest))
    bom.register_dependency(whole, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _python(image: Image, contents: Contents) -> Iterator[Component]:
    pinned = _pinned(image)
    for package in sorted(contents.python):
        if package not in pinned and package != _PRODUCT:
            raise ClusterError(
                f"{image.tag} has {package.name} {package.version}, which no requirements file pins",
                remedy=f"run 'make lock', and name the file in {image.containerfile}",
            )
        yield _component(package, PackageURL("pypi", None, *package), pinned.get(package, []))


def _pinned(image: Image) -> Mapping[Package, list[str]]:
    """Hashes of the distributions of each package, one of which pip has installed: it takes no other."""
    texts = [for_python(path.read_text(encoding="utf-8"), PYTHON) for path in image.requirements]
    entries = [entry for text in texts for entry in _PINNED.findall(text)]
    return {Package(name, version): _DISTRIBUTIONS.findall(hashes) for name, version, hashes in entries}


def _component(package: Package, purl: PackageURL, hashes: list[str]) -> Component:
    return Component(
        name=package.name, version=package.version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string(),
        hashes=map(_sha256, hashes),
    )  # fmt: skip


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)
