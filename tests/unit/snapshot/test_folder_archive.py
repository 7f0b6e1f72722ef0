"""A folder goes through an archive and is the same again, whatever its files are like."""

from __future__ import annotations

import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot.folder_archive import write_archive


class Bytes:
    """A stream that is kept."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False

    def write(self, data: memoryview) -> None:
        assert 0 < len(data) <= 4 << 20
        self.data += data

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "folder").mkdir()
    return folder


def archive_of(folder: Path) -> Path:
    stream = Bytes()
    assert write_archive(folder, stream) == len(stream.data)
    assert stream.closed
    path = folder.parent / "archive.tar"
    path.write_bytes(stream.data)
    return path


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {member.name: member for member in archive}


def extracted(path: Path) -> Path:
    """As GNU tar understands it."""
    (target := path.parent / "extracted").mkdir()
    tar = ("tar", "--extract", "--xattrs", "--xattrs-include=*")
    subprocess.run([*tar, "--file", path, "--directory", target], check=True)
    return target


def test_files_come_back_with_content_mode_and_time(folder: Path) -> None:
    (folder / "empty").touch()
    (folder / "small").write_bytes(b"one block and more" * 40)
    (folder / "large").write_bytes(os.urandom((3 << 20) + 17))
    (folder / "small").chmod(0o4750)
    os.utime(folder / "small", ns=(0, 1_700_000_000_123_456_789))
    (folder / "folder").mkdir(mode=0o700)
    (folder / "folder" / "name with \udcff and ü").write_text("odd")
    (folder / "link").symlink_to("../../nowhere")
    os.mkfifo(folder / "pipe")

    target = extracted(archive_of(folder))

    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == names
    for name in names:
        was, is_ = (folder / name).lstat(), (target / name).lstat()
        assert (was.st_mode, was.st_uid, was.st_gid, was.st_mtime_ns) == (
            is_.st_mode, is_.st_uid, is_.st_gid, is_.st_mtime_ns,
        ), name  # fmt: skip
    for name in ("empty", "small", "large", "folder/name with \udcff and ü"):
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    assert (target / "link").readlink() == Path("../../nowhere")


def test_two_names_of_one_file_stay_two_names_of_one_file(folder: Path) -> None:
    (folder / "a").write_text("shared")
    (folder / "b").hardlink_to(folder / "a")
    found = members(archive_of(folder))
    assert found["./b"].islnk()
    assert found["./b"].linkname == "./a"
    target = extracted(folder.parent / "archive.tar")
    assert (target / "a").stat().st_ino == (target / "b").stat().st_ino


@pytest.mark.parametrize("holes", [((0, 1 << 20),), ((1 << 20, 1),), ((5000, 3), (9 << 20, 70_000))])
def test_holes_are_not_carried(folder: Path, holes: tuple[tuple[int, int], ...]) -> None:
    path = folder / "sparse"
    with path.open("wb") as file:
        for offset, length in holes:
            os.pwrite(file.fileno(), b"x" * length, offset)
        file.truncate(20 << 20)
    archive = archive_of(folder)
    assert archive.stat().st_size < 2 << 20
    assert (extracted(archive) / "sparse").read_bytes() == path.read_bytes()
    with tarfile.open(archive) as opened:
        content = opened.extractfile("./sparse")
        assert content is not None
        assert content.read() == path.read_bytes()


def test_a_file_that_is_nothing_but_a_hole(folder: Path) -> None:
    with (folder / "hole").open("wb") as file:
        file.truncate(3 << 20)
    assert (extracted(archive_of(folder)) / "hole").read_bytes() == bytes(3 << 20)


def test_sockets_and_what_criu_makes_are_left_out(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    (folder / "link_remap.7").touch()
    (folder / "link_remap.txt").touch()
    assert set(members(archive_of(folder))) == {".", "./link_remap.txt"}


def test_attributes_are_carried_byte_for_byte(folder: Path) -> None:
    (folder / "file").touch()
    value = b"\x00\xff=\n7 and more"
    try:
        os.setxattr(folder / "file", "user.test", value)
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    assert os.getxattr(extracted(archive_of(folder)) / "file", "user.test") == value


@pytest.mark.parametrize("name", ["redirect", "metacopy"])
def test_what_overlayfs_keeps_elsewhere_is_refused(folder: Path, name: str) -> None:
    (folder / "renamed").mkdir()
    try:
        os.setxattr(folder / "renamed", f"user.overlay.{name}", b"/elsewhere")
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    with pytest.raises(DumpError, match="renamed"):
        archive_of(folder)


def test_marks_of_overlayfs_stay_and_its_notes_go(folder: Path) -> None:
    (folder / "hidden").mkdir()
    try:
        for name in ("opaque", "origin", "impure"):
            os.setxattr(folder / "hidden", f"user.overlay.{name}", b"y")
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    attributes = {name for name in members(archive_of(folder))["./hidden"].pax_headers if "xattr" in name}
    assert attributes == {"SCHILY.xattr.user.overlay.opaque"}


def test_archives_of_one_folder_are_the_same(folder: Path) -> None:
    for number in range(50):
        (folder / str(number)).write_text(str(number))
    assert archive_of(folder).read_bytes() == archive_of(folder).read_bytes()


@pytest.mark.parametrize("before", [0, 1, 600, 5000, 70_000])
@pytest.mark.parametrize("hole", [0, 1 << 20])
def test_a_large_file_begins_on_a_page_wherever_it_is(folder: Path, before: int, hole: int) -> None:
    content = bytes(hole) + os.urandom(100_000)
    (folder / "a").write_bytes(b"x" * before)
    with (folder / "b").open("wb") as file:
        file.seek(hole)
        file.write(content[hole:])
    archive = archive_of(folder)
    assert archive.read_bytes().find(content[hole:]) % 4096 == 0
    assert (extracted(archive) / "b").read_bytes() == content


class Exchanging(Bytes):
    """As a process that is not frozen: exchanges a folder for a link once so much has been read."""

    def __init__(self, folder: Path, link: Path, after: int) -> None:
        super().__init__()
        self._folder, self._link, self._after = folder, link, after

    def write(self, data: memoryview) -> None:
        super().write(data)
        if len(self.data) > self._after and not self._folder.is_symlink():
            self._folder.rename(self._folder.parent / "zz")
            self._folder.symlink_to(self._link)


def test_a_folder_exchanged_for_a_link_while_it_is_read_shows_nothing_of_the_host(folder: Path) -> None:
    (host := folder.parent / "host").mkdir()
    (host / "admin.conf").write_text("HOST SECRET")
    (folder / "d").mkdir()
    (folder / "d/aaa").write_bytes(os.urandom(4 << 20))
    (folder / "d/admin.conf").write_text("dummy")
    stream = Exchanging(folder / "d", host, 2 << 20)
    with pytest.raises(DumpError, match=r"d/admin\.conf was removed or exchanged while it was saved"):
        write_archive(folder, stream)
    assert b"HOST SECRET" not in stream.data


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_exchanged_while_its_folder_is_read_is_not_opened(folder: Path, kind: str) -> None:
    """A pipe would keep whoever opens it for ever."""
    (folder.parent / "secret").write_text("HOST SECRET")
    (folder / "a").write_bytes(os.urandom(4 << 20))
    (folder / "b").write_text("dummy")

    class Exchange(Bytes):
        def write(self, data: memoryview) -> None:
            super().write(data)
            if (folder / "b").is_file() and not (folder / "b").is_symlink():
                (folder / "b").unlink()
                os.mkfifo(folder / "b") if kind == "pipe" else (folder / "b").symlink_to(folder.parent / "secret")

    stream = Exchange()
    write_archive(folder, stream)
    assert b"HOST SECRET" not in stream.data
    (path := folder.parent / "archive.tar").write_bytes(stream.data)
    found = members(path)["./b"]
    assert (found.issym(), found.isfifo()) == (kind == "link", kind == "pipe")


def test_a_root_that_is_a_link_is_refused(folder: Path) -> None:
    (folder.parent / "link").symlink_to("/etc")
    with pytest.raises(OSError, match="link"):
        write_archive(folder.parent / "link", Bytes())


@pytest.fixture
def deep(folder: Path) -> Iterator[Path]:
    path = folder
    for _ in range(1500):
        path = path / "d"
        path.mkdir()
    yield folder
    subprocess.run(["rm", "--recursive", folder], check=True)  # pytest's own removal recurses, and ends the run


def test_folders_lie_as_deep_as_they_like(deep: Path) -> None:
    assert len(members(archive_of(deep))) == 1501
