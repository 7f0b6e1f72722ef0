"""Which names users of a machine can redirect: of folders and links that are theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cedana_sched.snapshot.reopened_names import NameTrust, can_create, examine_name

pytestmark = pytest.mark.criu

USER = 65534
SAFE = NameTrust()
REPLACEABLE = NameTrust(is_replaceable=True)


@pytest.fixture
def roots() -> Iterator[Path]:
    """A folder that root alone can write, as all above it: the folders of pytest are so, too."""
    with TemporaryDirectory(dir="/root") as folder:
        yield Path(folder)


@pytest.fixture
def users(roots: Path) -> Path:
    folder = roots / "home"
    folder.mkdir()
    (folder / "file").touch()
    for path in (folder, folder / "file"):
        os.chown(path, USER, USER)
    return folder


def test_what_is_in_folders_of_roots_alone_is_safe(roots: Path) -> None:
    (roots / "file").touch()
    os.chown(roots / "file", USER, USER)
    assert examine_name(f"{roots}/file") == SAFE
    assert examine_name(f"{roots}/missing") == SAFE
    assert examine_name(f"{roots}/missing/too") == SAFE
    assert examine_name("/dev/null") == SAFE


@pytest.mark.parametrize("name", ["file", "missing", "missing/too"])
def test_what_is_in_a_folder_of_a_user_can_be_replaced(users: Path, name: str) -> None:
    assert examine_name(f"{users}/{name}") == REPLACEABLE
    assert examine_name(f"{users}") == SAFE


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_what_is_in_a_folder_that_others_write_can_be_replaced(roots: Path, mode: int) -> None:
    roots.chmod(mode)
    (roots / "file").touch()
    assert examine_name(f"{roots}/file") == REPLACEABLE


def test_in_a_sticky_folder_only_what_is_roots_is_safe(roots: Path) -> None:
    roots.chmod(0o1777)
    (roots / "file").touch()
    assert examine_name(f"{roots}/file") == SAFE
    assert examine_name(f"{roots}/missing") == REPLACEABLE
    os.chown(roots / "file", USER, USER)
    assert examine_name(f"{roots}/file") == REPLACEABLE


def test_links_of_roots_are_followed_and_those_of_users_are_named(roots: Path, users: Path) -> None:
    (roots / "there").symlink_to(users)
    (roots / "etc").symlink_to("/etc")
    (users / "link").symlink_to("/etc")
    assert examine_name(f"{roots}/etc/passwd") == SAFE
    assert examine_name(f"{roots}/there/file") == REPLACEABLE
    assert examine_name(f"{roots}/there/link/passwd") == NameTrust(f"{users}/link", is_replaceable=True)
    assert examine_name(f"{users}/link") == NameTrust(f"{users}/link", is_replaceable=True)


def test_links_that_lead_nowhere_have_an_end(roots: Path) -> None:
    (roots / "one").symlink_to("one")
    assert examine_name(f"{roots}/one").link == f"{roots}/one"


def link(path: Path, target: Path, user: int = USER) -> None:
    path.symlink_to(target)
    os.chown(path, user, user, follow_symlinks=False)


def test_a_user_can_create_names_in_folders_of_their_own_and_of_everyone() -> None:
    with TemporaryDirectory(dir="/tmp") as reachable:
        folder = Path(reachable)
        folder.chmod(0o755)
        (folder / "own").mkdir(mode=0o700)
        os.chown(folder / "own", USER, USER)
        (folder / "roots").mkdir()
        (folder / "private").mkdir(mode=0o700)
        (folder / "private/open").mkdir()
        (folder / "private/open").chmod(0o777)
        (folder / "everyones").mkdir()
        (folder / "everyones").chmod(0o1777)
        (folder / "everyones/roots").touch()
        for name in ("roots", "private/open", "everyones"):
            link(folder / "own" / name.replace("/", "-"), folder / name)
        (folder / "own/self").mkdir()
        os.chown(folder / "own/self", USER, USER)
        link(folder / "own/there", folder / "own/self")
        link(folder / "own/foreign", folder / "own/self", user=USER - 1)
        link(folder / "own/self/link", folder / "own/self/nothing")

        assert can_create(f"{folder}/own/there/socket", USER)
        assert can_create(f"{folder}/own/everyones/socket", USER)
        assert not can_create(f"{folder}/own/everyones/roots", USER), "another user's name in a sticky folder"
        assert not can_create(f"{folder}/own/roots/socket", USER)
        assert not can_create(f"{folder}/own/private-open/socket", USER), "it is not reached"
        assert not can_create(f"{folder}/own/foreign/socket", USER), "a link of another user"
        assert not can_create(f"{folder}/own/there/link", USER), "a link at the end"
        assert not can_create(f"{folder}/own/there/missing/socket", USER)
        (folder / "own/self").chmod(0o500)
        assert not can_create(f"{folder}/own/there/socket", USER)
