"""Pinned packages come from the mirror, else from the archive, as they are pinned; else an error says what to do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.snapshot import packages
from cedana_sched.snapshot.debian import DebianPackagesError, Package
from cedana_sched.snapshot.package_pins import PackagePins
from cedana_sched.snapshot.packages import fetch_pinned, obtain_packages
from tests.servers.debian_archive import DebianServers, debian_servers

BEFORE, PINNED_AT, LATER = "20261029T023011Z", "20261030T080801Z", "20261101T140213Z"
CRIU, LIBC = b"criu" * 5000, b"libc" * 5000


def package(name: str, version: str, content: bytes) -> Package:
    return Package(name, version, f"pool/main/{name}_{version}_amd64.deb", hashlib.sha256(content).hexdigest())


LIBRARY = package("libc6", "2.43+b7", LIBC)
PROGRAM = package("criu", "4.2.1-1", CRIU)


@pytest.fixture
def servers() -> Iterator[DebianServers]:
    """A mirror on which the suite has moved on, and the archive, which has what was there."""
    with debian_servers() as both:
        both.pool = {"pool/main/criu_4.3-1_amd64.deb": b"newer"}
        both.published = {BEFORE: {PROGRAM.file: CRIU, LIBRARY.file: LIBC}, LATER: both.pool}
        yield both


@pytest.fixture
def pins(servers: DebianServers) -> PackagePins:
    return PackagePins(servers.archive(PINNED_AT), (PROGRAM, LIBRARY))


def fetched(pins: PackagePins, servers: DebianServers, folder: Path) -> list[bytes]:
    obtained = fetch_pinned(pins, [servers.mirror], folder / "into")
    assert obtained.packages == pins.packages
    return [file.read_bytes() for file in obtained.files]


def asked_of_the_archive(servers: DebianServers) -> set[str]:
    return {path.rpartition("/")[2] for path in servers.requests if path.startswith("/archive")}


def test_what_the_mirror_has_comes_from_there(pins: PackagePins, servers: DebianServers, tmp_path: Path) -> None:
    servers.pool |= {PROGRAM.file: CRIU, LIBRARY.file: LIBC}
    assert fetched(pins, servers, tmp_path) == [CRIU, LIBC]
    assert not asked_of_the_archive(servers)


def test_what_the_suite_no_longer_has_comes_from_the_archive(
    pins: PackagePins, servers: DebianServers, tmp_path: Path
) -> None:
    servers.pool |= {LIBRARY.file: LIBC}
    assert fetched(pins, servers, tmp_path) == [CRIU, LIBC]
    assert asked_of_the_archive(servers) == {"criu_4.2.1-1_amd64.deb"}


@pytest.mark.parametrize("damage", ["changed", "broken off"])
def test_what_is_not_as_it_is_pinned_is_not_taken(
    pins: PackagePins, servers: DebianServers, tmp_path: Path, damage: str
) -> None:
    servers.pool |= {PROGRAM.file: CRIU, LIBRARY.file: b"another" if damage == "changed" else LIBC}
    if damage == "broken off":
        servers.breaks_off = {f"debian/{LIBRARY.file}"}
        servers.published[BEFORE] = {LIBRARY.file: LIBC}
    assert fetched(pins, servers, tmp_path) == [CRIU, LIBC]
    assert asked_of_the_archive(servers) == {"libc6_2.43+b7_amd64.deb"}


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_what_neither_has_is_named_with_the_remedy(
    pins: PackagePins, servers: DebianServers, tmp_path: Path, damage: str
) -> None:
    servers.published[BEFORE] = {LIBRARY.file: LIBC} | ({PROGRAM.file: b"another"} if damage == "changed" else {})
    with pytest.raises(DebianPackagesError, match=r"package criu 4\.2\.1-1, which is pinned") as caught:
        fetched(pins, servers, tmp_path)
    assert pins.archive in caught.value.message
    assert "make pin" in caught.value.remedy
    why = {"changed": "Hash Sum mismatch", "gone": "404"}[damage]
    assert [line for line in caught.value.evidence if "/archive/" in line and why in line]
    assert [line for line in caught.value.evidence if "/debian/pool" in line and "404" in line]
    assert asked_of_the_archive(servers) == {"criu_4.2.1-1_amd64.deb"}, "it was asked for more after the first failure"
    assert not PROGRAM.download_path_in(tmp_path / "into").exists()


def test_an_archive_that_does_not_answer_is_named(pins: PackagePins, servers: DebianServers, tmp_path: Path) -> None:
    with debian_servers() as gone:
        pins = PackagePins(gone.archive(PINNED_AT), pins.packages)
    with pytest.raises(DebianPackagesError, match=r"criu 4\.2\.1-1") as caught:
        fetched(pins, servers, tmp_path)
    assert "Could not connect" in "\n".join(caught.value.evidence)


class Served:
    """Stands for a suite over the network, as Debian has signed it today."""

    def __init__(self, suite: str, folder: Path) -> None:
        folder.mkdir(parents=True)

    def look_up_packages(self, *names: str) -> list[Package]:
        return [package(name, "5", name.encode()) for name in names]

    def names_with_dependencies(self, *names: str) -> list[str]:
        return [*names, "gcc-base", "libc6"]

    def download(self, wanted: list[Package], into: Path) -> list[Path]:
        return [each.download_path_in(into) for each in wanted]


@pytest.fixture
def machine(pins: PackagePins, servers: DebianServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine, whose mirror is the one here, and the release that has these pins."""
    monkeypatch.setattr(packages, "debian_mirrors", lambda: [servers.mirror])
    monkeypatch.setattr(packages, "read_pins", lambda _: pins)
    monkeypatch.setattr(packages, "DebianSuite", Served)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("only_pinned", [True, False])
def test_pinned_packages_are_preferred(tmp_path: Path, only_pinned: bool) -> None:
    said: list[str] = []
    obtained = obtain_packages(tmp_path / "work", said.append, only_pinned=only_pinned)
    assert list(obtained.packages) == [PROGRAM, LIBRARY]
    assert said == ["downloading CRIU and its libraries (2 packages)"]


@pytest.mark.usefixtures("machine")
def test_else_what_debian_has_today_is_taken_and_one_line_says_so(servers: DebianServers, tmp_path: Path) -> None:
    servers.published = {}
    said: list[str] = []
    obtained = obtain_packages(tmp_path / "work", said.append, only_pinned=False)
    assert {(each.name, each.version) for each in obtained.packages} == {
        (name, "5") for name in ("criu", "nftables", "tini-static", "python3-pycriu", "libc6")
    }
    [line] = [line for line in said if "today" in line]
    assert "criu 4.2.1-1" in line
    assert "\n" not in line


@pytest.mark.usefixtures("machine")
def test_unless_only_pinned_packages_will_do(servers: DebianServers, tmp_path: Path) -> None:
    servers.published = {}
    with pytest.raises(DebianPackagesError, match=r"criu 4\.2\.1-1"):
        obtain_packages(tmp_path / "work", print, only_pinned=True)


def test_an_architecture_that_nobody_has_pinned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "machine_architecture", lambda: "loong64")
    with pytest.raises(DebianPackagesError, match="loong64") as caught:
        obtain_packages(tmp_path / "work", print, only_pinned=True)
    assert "make pin" in caught.value.remedy
