"""A name beneath a folder leads beneath it, and nowhere else, whoever exchanges what has that name."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler import safe_open
from cedana_sched.runtime_handler.safe_open import (
    descriptor_path,
    open_folder,
    open_path_beneath,
    open_regular_file,
    open_trusted_folder,
    remove_all_in,
    remove_recursively,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "volume").mkdir()
    (tmp_path / "secret").write_text("of the host")
    (folder / "file").write_text("of the pod")
    (folder / "inner").mkdir()
    (folder / "inner/file").write_text("deeper")
    (folder / "to-file").symlink_to(tmp_path / "secret")
    (folder / "to-folder").symlink_to(tmp_path)
    (folder / "to-inner").symlink_to("inner")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def held(folder: Path) -> Iterator[int]:
    descriptor = open_trusted_folder(folder)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("name", ["file", "./file", "inner/file", "./inner/file"])
def test_a_file_beneath_is_read(held: int, name: str) -> None:
    seen = open_path_beneath(held, name)
    with os.fdopen(open_regular_file(seen), "rb") as file:
        assert file.read() in {b"of the pod", b"deeper"}
    os.close(seen)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("../secret", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("to-folder/secret", errno.ELOOP),
        ("to-inner/file", errno.ELOOP),
        ("inner/../../secret", errno.EXDEV),
    ],
)
def test_what_leads_elsewhere_is_refused(held: int, name: str, number: int) -> None:
    for call in (open_path_beneath, open_folder):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is compared
            call(held, name)
        assert caught.value.errno == number


@pytest.mark.parametrize("name", ["to-file", "pipe", "socket", "inner"])
def test_nothing_is_opened_but_a_regular_file(folder: Path, held: int, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        seen = open_path_beneath(held, name)
        with pytest.raises(OSError, match="no regular file"):
            open_regular_file(seen)
        os.close(seen)


def test_a_link_is_seen_itself(folder: Path, held: int) -> None:
    seen = open_path_beneath(held, "to-file")
    assert stat.S_ISLNK(os.fstat(seen).st_mode)
    assert os.readlink("", dir_fd=seen) == str(folder.parent / "secret")
    os.close(seen)


def test_a_descriptor_holds_the_file_whatever_takes_its_name(folder: Path, held: int) -> None:
    seen = open_path_beneath(held, "file")
    (folder / "file").unlink()
    (folder / "file").symlink_to(folder.parent / "secret")
    with os.fdopen(open_regular_file(seen), "rb") as file:
        assert file.read() == b"of the pod"
    os.chmod(descriptor_path(seen), 0o600)  # noqa: PTH101 - it is no path to a name
    assert stat.S_IMODE(os.fstat(seen).st_mode) == 0o600
    os.close(seen)


def test_a_folder_is_held_by_its_own_name_only(folder: Path) -> None:
    with pytest.raises(OSError, match="to-inner"):
        open_trusted_folder(folder / "to-inner")


def test_a_tree_goes_and_nothing_that_its_links_lead_to(folder: Path, held: int) -> None:
    deep = folder / "inner"
    for _ in range(1200):  # deeper than Python calls itself
        deep = deep / "d"
        deep.mkdir()
    remove_recursively(held, "to-folder")
    remove_recursively(held, "absent")
    with_list = open_folder(held, ".")
    remove_all_in(with_list)
    os.close(with_list)
    assert list(folder.iterdir()) == []
    assert (folder.parent / "secret").read_text() == "of the host"


def test_a_kernel_without_openat2_is_named(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call number -1 is one that no kernel has."""
    monkeypatch.setattr(safe_open, "_SYS_OPENAT2", -1)
    with pytest.raises(OSError, match=r"no openat2, which Linux has since 5\.6"):
        open_path_beneath(held, "file")
