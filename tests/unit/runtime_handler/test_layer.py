"""An archive is laid beneath its directory, whatever names it has, and whatever is there."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.layer import LayerError, _LayerUnpacker, unpack_layer
from cedana_sched.runtime_handler.rootfs import _empty_folder
from cedana_sched.runtime_handler.safe_open import open_trusted_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners are kept, which needs root")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (volume := tmp_path / "volume").mkdir()
    (host := tmp_path / "host").mkdir()
    (host / "passwd").write_text("root")
    return volume


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **changes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    for field, value in changes.items():
        setattr(info, field, value)
    return info


def archive(folder: Path, *entries: tarfile.TarInfo) -> str:
    path = folder / "archive.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as written:
        for one in entries:
            one.size = 3 if one.isreg() else 0
            written.addfile(one, io.BytesIO(b"new") if one.isreg() else None)
    return str(path)


@contextmanager
def closing_folder(path: Path) -> Iterator[int]:
    held = open_trusted_folder(path)
    try:
        yield held
    finally:
        os.close(held)


def host_files(volume: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (volume.parent / "host").iterdir()}


@pytest.mark.parametrize("name", ["/passwd", "../host/passwd", "a/../../host/passwd", ".."])
def test_a_name_that_leads_out_is_refused(volume: Path, name: str) -> None:
    with pytest.raises(LayerError, match="leads out of the container"):
        unpack_layer(archive(volume.parent, entry(name)), str(volume))
    assert host_files(volume) == {"passwd": "root"}


@pytest.mark.parametrize("target", ["{host}", "../host", "/", "."])
def test_a_folder_that_a_later_entry_turns_into_a_link_is_not_followed(volume: Path, target: str) -> None:
    where = target.format(host=volume.parent / "host")
    entries = entry("a", tarfile.DIRTYPE), entry("a", tarfile.SYMTYPE, where), entry("a/passwd")
    with pytest.raises(LayerError, match="Not a directory"):
        unpack_layer(archive(volume.parent, *entries), str(volume))
    assert host_files(volume) == {"passwd": "root"}
    assert [path.name for path in volume.iterdir()] == ["a"]


def test_a_folder_is_not_described_by_way_of_a_link_that_took_its_place(volume: Path) -> None:
    """Its time is written after all that is in it: somebody in the pod may have exchanged it by then."""
    host = volume.parent / "host"
    os.utime(host, ns=(7, 7))
    entries = entry("a", tarfile.DIRTYPE, mtime=5), entry("a", tarfile.SYMTYPE, str(host))
    unpack_layer(archive(volume.parent, *entries), str(volume))
    assert (volume / "a").is_symlink()
    with closing_folder(volume) as held, pytest.raises(NotADirectoryError):
        _LayerUnpacker(held, is_harmless=False)._set_mtime("a", 5)
    assert host.stat().st_mtime_ns == 7


def test_a_link_that_was_there_gives_way_to_a_folder(volume: Path) -> None:
    (volume / "a").symlink_to(volume.parent / "host")
    unpack_layer(archive(volume.parent, entry("a", tarfile.DIRTYPE, mode=0o755), entry("a/passwd")), str(volume))
    assert not (volume / "a").is_symlink()
    assert (volume / "a/passwd").read_text() == "new"
    assert host_files(volume) == {"passwd": "root"}


def test_a_link_on_the_way_that_was_there_is_not_followed(volume: Path) -> None:
    (volume / "a").symlink_to(volume.parent / "host")
    with pytest.raises(LayerError, match="Not a directory"):
        unpack_layer(archive(volume.parent, entry("a/passwd")), str(volume))
    assert host_files(volume) == {"passwd": "root"}


@pytest.mark.parametrize("target", ["../host/passwd", "{host}/passwd", "a/passwd"])
def test_a_hard_link_to_the_outside_is_refused(volume: Path, target: str) -> None:
    host = volume.parent / "host"
    entries = entry("a", tarfile.SYMTYPE, str(host)), entry("b", tarfile.LNKTYPE, target.format(host=host))
    with pytest.raises(LayerError):
        unpack_layer(archive(volume.parent, *entries), str(volume))
    assert (host / "passwd").stat().st_nlink == 1


def test_all_kinds_come_with_owner_mode_and_time(volume: Path) -> None:
    kinds = {
        "folder": (tarfile.DIRTYPE, stat.S_IFDIR),
        "file": (tarfile.REGTYPE, stat.S_IFREG),
        "pipe": (tarfile.FIFOTYPE, stat.S_IFIFO),
        "device": (tarfile.CHRTYPE, stat.S_IFCHR),
    }
    entries = [entry(name, kind, uid=7, gid=8, mode=0o4751, mtime=9) for name, (kind, _) in kinds.items()]
    entries[-1].devmajor, entries[-1].devminor = 1, 3
    last = entry("link", tarfile.SYMTYPE, "file", uid=7, gid=8, mtime=9), entry("again", tarfile.LNKTYPE, "file")
    before = os.umask(0o077)
    try:
        unpack_layer(archive(volume.parent, *entries, *last), str(volume))
    finally:
        os.umask(before)
    for name, (_, kind) in kinds.items():
        found = (volume / name).lstat()
        assert (found.st_uid, found.st_gid, found.st_mtime) == (7, 8, 9), name
        assert found.st_mode == kind | 0o4751, name
    assert (volume / "device").stat().st_rdev == os.makedev(1, 3)
    assert (volume / "link").lstat().st_uid == 7
    assert (volume / "again").stat().st_ino == (volume / "file").stat().st_ino


def test_what_is_there_goes_first_and_links_lead_to_nothing(volume: Path) -> None:
    (volume / "old").mkdir()
    (volume / "old/link").symlink_to(volume.parent / "host")
    (volume / "link").symlink_to(volume.parent / "host")
    unpack_layer(archive(volume.parent, entry("file")), str(volume), instead=True)
    assert [path.name for path in volume.iterdir()] == ["file"]
    assert host_files(volume) == {"passwd": "root"}


def test_programs_of_a_harmless_layer_give_nobody_privileges(volume: Path) -> None:
    program, folder = entry("program", mode=0o6755), entry("folder", tarfile.DIRTYPE, mode=0o2775)
    program.pax_headers = {"SCHILY.xattr.security.capability": "of somebody", "SCHILY.xattr.user.kept": "yes"}
    unpack_layer(archive(volume.parent, program, folder), str(volume), is_harmless=True)
    assert stat.S_IMODE((volume / "program").stat().st_mode) == 0o755
    assert os.listxattr(volume / "program") == ["user.kept"]
    assert stat.S_IMODE((volume / "folder").stat().st_mode) == 0o2775, "it only says whose its files are"


def test_a_volume_that_is_a_link_is_none(volume: Path) -> None:
    (volume.parent / "link").symlink_to(volume)
    with pytest.raises(OSError, match="link"):
        unpack_layer(archive(volume.parent, entry("file")), str(volume.parent / "link"))
    with pytest.raises(OSError, match="link"):
        _empty_folder(str(volume.parent / "link"))


def test_a_process_of_the_pod_that_exchanges_a_folder_for_a_link_gets_nothing_written(volume: Path) -> None:
    host, over = volume.parent / "host", threading.Event()

    def exchange() -> None:
        here, gone, link = volume / "a", volume.parent / "gone", volume.parent / "link"
        while not over.is_set():
            with suppress(FileExistsError):
                link.symlink_to(host)
            for source, target in ((here, gone), (link, here), (here, link), (gone, here)):
                with suppress(OSError):
                    source.rename(target)

    attack = threading.Thread(target=exchange)
    attack.start()
    try:
        path = archive(volume.parent, entry("a", tarfile.DIRTYPE), *(entry(f"a/{number}") for number in range(300)))
        for _ in range(3):
            with suppress(LayerError):
                unpack_layer(path, str(volume))
    finally:
        over.set()
        attack.join()
    assert host_files(volume) == {"passwd": "root"}


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_memory_does_not_grow_with_the_number_of_files(volume: Path, kind: bytes) -> None:
    """A tenant fills a volume with as many as the disk takes; who lays them has the agent's memory."""
    peaks = []
    for number in (300, 3_000):
        names = (f"all/{index:05}-{'long' * 50}" for index in range(number))
        path = archive(volume.parent, entry("all", tarfile.DIRTYPE), *(entry(name, kind) for name in names))
        tracemalloc.start()
        unpack_layer(path, str(volume), instead=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1 << 20


def test_each_folder_has_its_time_whatever_is_laid_into_it_and_after_it(volume: Path) -> None:
    folders = ["a", "a/b", "a/b/c", "a-b", "d"]
    entries = [entry(name, tarfile.DIRTYPE, mtime=1_000 + number) for number, name in enumerate(folders)]
    files = [entry(f"{name}/file") for name in folders]
    order = sorted([*entries, *files], key=lambda one: one.name.split("/"))
    unpack_layer(archive(volume.parent, *order), str(volume))
    assert [int((volume / name).stat().st_mtime) for name in folders] == [1_000, 1_001, 1_002, 1_003, 1_004]
