"""Beside an image that is given away stands what is in it, by the hashes that are pinned, and what it is made of."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cedana_sched
from tests.cluster.errors import ClusterError
from tests.cluster.images.catalog import PRODUCT_PREFIX, Image
from tests.cluster.images.release.bill import bill_of_materials
from tests.cluster.images.release.contents import Contents, Package, contents_of
from tests.cluster.images.release.debian_packages import DebianPackage, debian_packages
from tests.cluster.images.release.provenance import BASE, provenance

COMMIT = "5d41402abc4b2a76b9719d911017c592aaaabbbb"
CREATED = "2026-11-24T15:06:40.991900861Z"
WHEEL, SOURCE = "1" * 64, "2" * 64
REQUIREMENTS = f"""\
msgspec==0.19.0 \\
    --hash=sha256:{WHEEL} \\
    --hash=sha256:{SOURCE}
tomli==2.0.0 ; python_version < "3.11" \\
    --hash=sha256:{"3" * 64}
typing-extensions==4.1 ; python_version >= "3.12" \\
    --hash=sha256:{WHEEL}
"""
BASE_STATUS = """\
Package: base-files
Status: install ok installed
Architecture: all
Version: 13.8

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
STATUS = f"""\
{BASE_STATUS}
Package: python3
Status: install ok installed
Architecture: amd64
Version: 3.13.5-1
"""
PYTHON = "usr/local/lib/python3.13/dist-packages"
SERVED = {Package("base-files", "13.8"): "5" * 64, Package("python3", "3.13.5-1"): "6" * 64}
CRIU = {"layout": 2, "packages": {"criu": "4.2.1-1"}, "digests": {"criu": "7" * 64}}
PINNED = {Package("criu", "4.2.1-1"): "7" * 64}
FOLDER_OF_CRIU = "usr/local/lib/cedana-sched/criu-4.2.1-0a"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """An image of the product, whose requirements are of a few lines."""
    (tmp_path / "Containerfile").write_text("# wheels: pinned.txt\nFROM debian:trixie-slim\n")
    (tmp_path / "pinned.txt").write_text(REQUIREMENTS)
    return Image("agent", f"{PRODUCT_PREFIX}agent:1.2", tmp_path / "Containerfile", tmp_path)


def layers(**more: str) -> list[Mapping[str, str]]:
    """Files of three layers: Debian, what pip has installed, and what else is named."""
    return [
        {"var/lib/dpkg/status": BASE_STATUS},
        {"./var/lib/dpkg/status": STATUS, f"{PYTHON}/msgspec-0.19.0.dist-info/METADATA": ""},
        {
            f"{PYTHON}/cedana_sched-{cedana_sched.__version__}.dist-info/METADATA": "",
            f"{PYTHON}/typing_extensions-4.1.dist-info/METADATA": "",
            f"{PYTHON}/msgspec/_vendor/inner-1.0.dist-info/METADATA": "no package of its own",
            f"{FOLDER_OF_CRIU}/toolchain.json": json.dumps(CRIU),
            **more,
        },
    ]


def written(folder: Path, files: list[Mapping[str, str]]) -> Path:
    """Write an archive in the format of `docker save`."""
    tars = [tar({name: text.encode() for name, text in layer.items()}) for layer in files]
    digests = [hashlib.sha256(layer).hexdigest() for layer in tars]
    config = {"created": CREATED, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in digests]}}
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": [f"{one}.tar" for one in digests]}]
    outer = {f"{one}.tar": layer for one, layer in zip(digests, tars, strict=True)}
    documents = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    (folder / "image.tar").write_bytes(tar(outer | documents))
    return folder / "image.tar"


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    return contents_of(written(tmp_path, layers()))


@pytest.fixture
def debian(contents: Contents) -> list[DebianPackage]:
    return list(debian_packages(contents, SERVED, PINNED))


def test_an_archive_says_what_is_in_it(contents: Contents, tmp_path: Path) -> None:
    assert contents.debian == {Package("base-files", "13.8"), Package("python3", "3.13.5-1")}
    installed = {"msgspec": "0.19.0", "typing-extensions": "4.1", "cedana-sched": cedana_sched.__version__}
    assert contents.python == set(map(Package._make, installed.items()))
    assert contents.criu == {Package("criu", "4.2.1-1"): "7" * 64}
    assert (contents.architecture, contents.created, len(contents.layers)) == ("amd64", CREATED, 3)
    assert contents.digest == hashlib.sha256((tmp_path / "image.tar").read_bytes()).hexdigest()


def test_the_bill_names_all_of_it_by_its_digests(image: Image, contents: Contents, debian: list[DebianPackage]) -> None:
    bill = json.loads(bill_of_materials(image, contents, debian))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {part["purl"]: hashes_of(part) for part in bill["components"]} == {
        "pkg:pypi/msgspec@0.19.0": {WHEEL, SOURCE},
        "pkg:pypi/typing-extensions@4.1": {WHEEL},
        f"pkg:pypi/cedana-sched@{cedana_sched.__version__}": set(),
        "pkg:deb/debian/base-files@13.8?arch=amd64&distro=trixie": {"5" * 64},
        "pkg:deb/debian/python3@3.13.5-1?arch=amd64&distro=trixie": {"6" * 64},
        "pkg:deb/debian/criu@4.2.1-1?arch=amd64&distro=testing": {"7" * 64},
    }
    whole = bill["metadata"]["component"]
    assert (whole["name"], hashes_of(whole)) == ("cedana-sched-agent", {contents.digest})
    assert bill == json.loads(bill_of_materials(image, contents, debian)), "the same archive, the same bill"


def hashes_of(component: dict[str, Any]) -> set[str]:
    found = component.get("hashes", [])
    assert {one["alg"] for one in found} <= {"SHA-256"}
    return {one["content"] for one in found}


@pytest.mark.parametrize("installed", ["msgspec-0.20.0", "tomli-2.0.0", "stranger-1.0"])
def test_what_nobody_has_pinned_is_refused(image: Image, tmp_path: Path, installed: str) -> None:
    found = contents_of(written(tmp_path, layers(**{f"{PYTHON}/{installed}.dist-info/METADATA": ""})))
    with pytest.raises(ClusterError, match=f"{installed.replace('-', ' ')}, which no requirements file pins"):
        bill_of_materials(image, found, [])


@pytest.mark.parametrize("served", [{}, {Package("python3", "3.13.5-2"): "6" * 64}])
def test_what_debian_has_no_more_is_refused(contents: Contents, served: Mapping[Package, str]) -> None:
    base = {Package("base-files", "13.8"): "5" * 64}
    with pytest.raises(ClusterError, match=r"python3 3\.13\.5-1 is in an image") as caught:
        list(debian_packages(contents, base | dict(served), PINNED))
    assert "base-root-*" in caught.value.remedy


def test_the_provenance_names_commit_base_requirements_and_packages(
    image: Image, contents: Contents, debian: list[DebianPackage]
) -> None:
    statement = json.loads(provenance(image, contents, debian, COMMIT))
    assert statement["_type"].endswith("/Statement/v1")
    assert statement["predicateType"].endswith("/provenance/v1")
    assert statement["subject"] == [{"name": image.tag, "digest": {"sha256": contents.digest}}]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"containerfile": "Containerfile", "tag": image.tag}
    assert {one["name"]: one["digest"] for one in definition["resolvedDependencies"]} == {
        "source": {"gitCommit": COMMIT},
        BASE: {"sha256": contents.layers[0]},
        "pinned.txt": {"sha256": hashlib.sha256(REQUIREMENTS.encode()).hexdigest()},
        "base-files": {"sha256": "5" * 64},
        "python3": {"sha256": "6" * 64},
        "criu": {"sha256": "7" * 64},
    }
    assert {one["uri"] for one in definition["resolvedDependencies"] if "uri" in one} == {
        "pkg:deb/debian/base-files@13.8?arch=amd64&distro=trixie",
        "pkg:deb/debian/python3@3.13.5-1?arch=amd64&distro=trixie",
        "pkg:deb/debian/criu@4.2.1-1?arch=amd64&distro=testing",
    }
    assert statement["predicate"]["runDetails"]["builder"] == {"id": "urn:cedana-sched:make-images"}


@pytest.mark.parametrize("pinned", [{}, {Package("criu", "4.2.1-2"): "7" * 64}, {Package("criu", "4.2.1-1"): "8" * 64}])
def test_criu_of_other_packages_than_the_pinned_ones_is_refused(
    contents: Contents, pinned: Mapping[Package, str]
) -> None:
    with pytest.raises(ClusterError, match=r"CRIU in an image is made from criu 4\.2\.1-1, which is not pinned"):
        list(debian_packages(contents, SERVED, pinned))
