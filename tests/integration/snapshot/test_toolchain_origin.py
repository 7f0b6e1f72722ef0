"""Of several toolchains the one from pinned packages is used; another version's only where none can be made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from cedana_sched.snapshot import criu_toolchain
from cedana_sched.snapshot.criu_toolchain import Origin, Toolchain, ensure_toolchain, find_toolchain
from cedana_sched.snapshot.debian import DebianPackagesError

PINNED, SERVED, EARLIER = "a" * 12, "b" * 12, "c" * 12
TINI = b"tini"


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A release with pins of its own, on a machine that can make no toolchain: it has no apt."""
    monkeypatch.setattr(criu_toolchain, "pinned_identities", lambda: frozenset({PINNED}))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def lay(cache: Path, identity: str, *, pinned_then: str | None, age_seconds: int = 0) -> Path:
    """Write a folder as a version that pinned those packages has made it, or one that pinned none (None)."""
    folder = cache / f"criu-4.2.1-{identity}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tini").write_bytes(TINI)
    files = {"bin/tini": hashlib.sha256(TINI).hexdigest()}
    marker = {"layout": 2, "version": "4.2.1", "packages": {"criu": "4.2.1-1"}, "files": files}
    if pinned_then:
        marker |= {"digests": {"criu": "1" * 64}, "pinned_then": [pinned_then]}
    written = folder / "toolchain.json"
    written.write_text(json.dumps(marker))
    os.utime(written, (written.stat().st_atime, written.stat().st_mtime - age_seconds))
    return folder


def found_in(cache: Path) -> Toolchain:
    found = find_toolchain(cache)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("identity", "pinned_then", "origin"),
    [
        (PINNED, PINNED, Origin.PINNED),
        (PINNED, None, Origin.PINNED),
        (SERVED, PINNED, Origin.SERVED),
        (SERVED, EARLIER, Origin.OLDER),
        (EARLIER, EARLIER, Origin.OLDER),
        (SERVED, None, Origin.OLDER),
    ],
)
def test_it_says_which_packages_it_is_made_from(
    tmp_path: Path, identity: str, pinned_then: str | None, origin: Origin
) -> None:
    lay(tmp_path, identity, pinned_then=pinned_then)
    assert found_in(tmp_path).origin is origin


def test_the_pinned_one_is_preferred_to_a_newer_one(tmp_path: Path) -> None:
    pinned = lay(tmp_path, PINNED, pinned_then=PINNED, age_seconds=60)
    lay(tmp_path, SERVED, pinned_then=PINNED)
    assert found_in(tmp_path).criu.is_relative_to(pinned)


@pytest.mark.parametrize("identity", [PINNED, SERVED])
def test_one_that_this_release_has_made_is_not_made_again(tmp_path: Path, identity: str) -> None:
    folder = lay(tmp_path, identity, pinned_then=PINNED)
    assert ensure_toolchain(tmp_path).criu.is_relative_to(folder)


def test_another_releases_is_used_where_none_can_be_made_and_one_line_says_so(tmp_path: Path) -> None:
    folder = lay(tmp_path, EARLIER, pinned_then=EARLIER)
    said: list[str] = []
    assert ensure_toolchain(tmp_path, said.append).criu.is_relative_to(folder)
    [line] = [line for line in said if "which another version has made, is used" in line]
    assert "no apt-get" in line


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with a word each time that packages are looked for, in vain."""
    made: list[str] = []

    def obtain(*_: object, **__: object) -> None:
        made.append("tried")
        raise DebianPackagesError("no mirror answers")

    monkeypatch.setattr(criu_toolchain, "obtain_packages", obtain)
    return made


def test_a_machine_without_a_way_to_them_tries_once_and_then_when_it_is_told_to(
    tmp_path: Path, attempts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = lay(tmp_path, EARLIER, pinned_then=EARLIER), list[str]()
    for _ in range(3):
        found = ensure_toolchain(tmp_path, said.append)
        assert (found.origin, found.criu.is_relative_to(folder)) == (Origin.OLDER, True)
    assert (attempts, len(said)) == (["tried"], 1)
    ensure_toolchain(tmp_path, try_again=True)
    assert len(attempts) == 2
    monkeypatch.setattr(criu_toolchain, "pinned_identities", lambda: frozenset({"d" * 12}))
    ensure_toolchain(tmp_path)
    assert len(attempts) == 3, "another version pins other packages"


def test_what_could_not_be_had_is_tried_again_where_nothing_else_will_do(tmp_path: Path, attempts: list[str]) -> None:
    folder = lay(tmp_path, EARLIER, pinned_then=EARLIER)
    ensure_toolchain(tmp_path)
    with pytest.raises(DebianPackagesError):
        ensure_toolchain(tmp_path, only_pinned=True)
    shutil.rmtree(folder)
    with pytest.raises(DebianPackagesError):
        ensure_toolchain(tmp_path)
    assert len(attempts) == 3


@pytest.mark.parametrize("content", [b"", b"\xff", PINNED.encode() + b"0"])
def test_a_note_that_says_something_else_counts_for_nothing(
    tmp_path: Path, attempts: list[str], content: bytes
) -> None:
    lay(tmp_path, EARLIER, pinned_then=EARLIER)
    (tmp_path / "toolchain-missed").write_bytes(content)
    ensure_toolchain(tmp_path)
    assert attempts == ["tried"]


@pytest.mark.parametrize(("identity", "pinned_then"), [(SERVED, PINNED), (EARLIER, EARLIER)])
def test_where_only_pinned_packages_will_do_no_other_does(tmp_path: Path, identity: str, pinned_then: str) -> None:
    lay(tmp_path, identity, pinned_then=pinned_then)
    with pytest.raises(DebianPackagesError, match="no apt-get"):
        ensure_toolchain(tmp_path, only_pinned=True)
