"""The folder that CRIU lies in: found when it is whole, not when it is damaged, and errors that say what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cedana_sched.model.errors import UsageError
from cedana_sched.snapshot.criu_toolchain import (
    MINIMUM_VERSION,
    SYSTEM_CRIU_VARIABLE,
    Toolchain,
    ensure_toolchain,
    find_toolchain,
)
from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite, debian_mirrors

pytestmark = pytest.mark.criu


@pytest.fixture
def copied(toolchain: Toolchain, tmp_path: Path) -> Path:
    """A cache of this test's own that holds a copy of the toolchain."""
    folder = toolchain.criu.parents[1]
    cache = tmp_path / "cache"
    shutil.copytree(folder, cache / folder.name)
    return cache


def test_it_runs_from_wherever_it_is_copied_to(copied: Path) -> None:
    found = find_toolchain(copied)
    assert found is not None
    assert found.criu.is_relative_to(copied)
    assert tuple(map(int, found.version.split("."))) >= MINIMUM_VERSION
    for program in (found.criu, found.tini, found.nft):
        assert subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    assert (found.pycriu / "pycriu" / "__init__.py").exists()


def test_tini_has_a_path_of_its_own_content(copied: Path, toolchain: Toolchain) -> None:
    found = find_toolchain(copied)
    assert found is not None
    assert found.tini.parent.name == toolchain.tini.parent.name
    found.tini.write_bytes(b"damaged")
    again = find_toolchain(copied)
    assert again is not None
    assert again.tini.read_bytes() == toolchain.tini.read_bytes()


@pytest.mark.parametrize("damage", ["changed", "missing", "added", "unfinished"])
def test_a_damaged_one_is_not_used(copied: Path, damage: str) -> None:
    (folder,) = copied.glob("criu-*")
    if damage == "changed":
        (folder / "lib" / "libnet.so.9").write_bytes(b"not a library")
    elif damage == "missing":
        (folder / "libexec" / "criu").unlink()
    elif damage == "added":
        (folder / "lib" / "libc.so.7").write_bytes(b"")
    else:
        (folder / "toolchain.json").unlink()
    assert find_toolchain(copied) is None


def test_an_empty_cache_has_none(tmp_path: Path) -> None:
    assert find_toolchain(tmp_path / "nothing") is None


def test_without_apt_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DebianPackagesError, match="no apt-get") as caught:
        ensure_toolchain(tmp_path / "cache")
    assert SYSTEM_CRIU_VARIABLE in caught.value.remedy
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["toolchain.lock"]


def test_the_mirror_is_the_machines_own() -> None:
    assert debian_mirrors()
    assert all("security" not in mirror for mirror in debian_mirrors())


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        pytest.param("echo 'Version: 3.17.1'", "is CRIU 3.17.1", id="too old"),
        pytest.param(None, "cannot be started", id="missing"),
    ],
)
def test_a_criu_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, problem: str
) -> None:
    criu = tmp_path / "criu"
    if program:
        criu.write_text(f"#!/bin/sh\n{program}\n")
        criu.chmod(0o755)
    monkeypatch.setenv(SYSTEM_CRIU_VARIABLE, str(criu))
    with pytest.raises(UsageError, match=problem) as caught:
        find_toolchain(tmp_path)
    assert caught.value.field == SYSTEM_CRIU_VARIABLE
    assert caught.value.value == str(criu)


def test_a_suite_knows_the_mirror_that_serves_it(tmp_path: Path) -> None:
    assert DebianSuite("testing", tmp_path / "apt").mirror in debian_mirrors()
