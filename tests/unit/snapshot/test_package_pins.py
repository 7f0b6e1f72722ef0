"""The pinned packages of CRIU: all of them, for each architecture on its own, and the image is sent what lays them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cedana_sched.snapshot.criu_toolchain import MINIMUM_VERSION
from cedana_sched.snapshot.debian import DebianPackagesError, Package, expand_mirror_lists
from cedana_sched.snapshot.package_pins import (
    PINS,
    PackagePins,
    identity_of_packages,
    pinned_identities,
    read_pins,
    write_pins,
)
from tools.pin_toolchain import archive_of

REPOSITORY = Path(__file__).resolve().parents[3]
CONTAINERFILE = REPOSITORY / "manifests/images/agent/Containerfile"
CRIU = Package("criu", "4.2.1-1", "pool/main/c/criu/criu_4.2.1-1_amd64.deb", "1" * 64)
LIBC = Package("libc6", "2.43-7", "pool/main/g/glibc/libc6_2.43-7_amd64.deb", "2" * 64)


def test_this_release_pins_all_that_criu_is_made_from() -> None:
    pins = read_pins("amd64")
    assert pins is not None
    assert re.fullmatch(r"https://snapshot\.debian\.org/archive/debian/\d{8}T\d{6}Z", pins.archive)
    by_name = {package.name: package for package in pins.packages}
    assert len(by_name) == len(pins.packages)
    assert by_name.keys() > {"criu", "nftables", "tini-static", "python3-pycriu", "libc6"}
    version = re.match(r"[\d.]+", by_name["criu"].version)
    assert version is not None
    assert tuple(map(int, version[0].split("."))) >= MINIMUM_VERSION
    for name, package in by_name.items():
        assert re.fullmatch(rf"pool/main/\S+/{re.escape(name)}_[^/]+_(amd64|all)\.deb", package.file)
        assert package.version.rpartition(":")[2] in package.file
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)


def test_an_architecture_without_pins_has_none() -> None:
    assert read_pins("loong64") is None


def test_writing_leaves_other_architectures_alone(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    of_arm, of_amd = PackagePins("http://archive.test/1", (LIBC,)), PackagePins("http://archive.test/2", (CRIU, LIBC))
    write_pins("arm64", of_arm, file)
    write_pins("amd64", PackagePins("http://archive.test/1", (LIBC,)), file)
    write_pins("amd64", of_amd, file)
    assert (read_pins("arm64", file), read_pins("amd64", file)) == (of_arm, of_amd)
    assert pinned_identities(file) == {of_arm.identity, of_amd.identity}


def test_the_identity_is_that_of_names_versions_and_digests() -> None:
    assert identity_of_packages([CRIU, LIBC]) == identity_of_packages([LIBC, CRIU])
    other = Package(CRIU.name, CRIU.version, CRIU.file, "3" * 64)
    assert identity_of_packages([CRIU, LIBC]) != identity_of_packages([other, LIBC])


def test_the_archive_is_named_by_the_date_of_the_suite() -> None:
    date = datetime(2026, 10, 30, 8, 8, 1, tzinfo=UTC)
    assert archive_of(date) == "https://snapshot.debian.org/archive/debian/20261030T080801Z"


def test_a_list_of_mirrors_stands_for_those_in_it(tmp_path: Path) -> None:
    listed = tmp_path / "debian.list"
    listed.write_text("# near\nhttp://near.example/debian\tpriority:1\n\nhttp://far.example/debian/\n")
    assert expand_mirror_lists(["http://own.example/debian/", f"mirror+file:{listed}/"]) == [
        "http://own.example/debian/", "http://near.example/debian", "http://far.example/debian/",
    ]  # fmt: skip


def test_a_list_of_mirrors_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DebianPackagesError, match=re.escape(str(tmp_path / "gone"))):
        expand_mirror_lists([f"mirror+file:{tmp_path}/gone"])


def test_the_image_is_sent_all_that_lays_criu_into_it() -> None:
    _, _, stage = CONTAINERFILE.read_text().partition("AS toolchain")
    lines = stage.partition("\nFROM ")[0].replace("\\\n", " ").splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    script = Path("manifests/images/agent/lay_toolchain.py")
    needed = {str(script), *modules_of(REPOSITORY / script), str(PINS.relative_to(REPOSITORY))}
    packages = {str(parent / "__init__.py") for path in needed for parent in Path(path).parents}
    assert needed | {name for name in packages if name.startswith("cedana_sched/")} == copied - {
        "cedana_sched/snapshot/rlimit_preload.c"
    }


def modules_of(file: Path, seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Our modules that a program imports, and those that these import, as paths of the repository."""
    for name in imports_of(file):
        path = f"{name.replace('.', '/')}.py"
        if path not in seen and (REPOSITORY / path).exists():
            seen = modules_of(REPOSITORY / path, seen | {path})
    return seen


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cedana_sched"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
