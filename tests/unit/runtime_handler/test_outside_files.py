"""What is recorded of the files outside a snapshot, and how the record is read."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.runtime_handler import outside_files
from cedana_sched.runtime_handler.outside_files import (
    OUTSIDE_FILES,
    Holder,
    OutsideFile,
    OutsideFiles,
    encode,
    outside_files_of,
    read_outside_files,
)

OPENS = """
import mmap, os, sys
os.chdir(sys.argv[1])
{steps}
print(flush=True)
sys.stdin.read()
"""


def below(folder: Path) -> Callable[[str], bool]:
    return lambda path: path.startswith(f"{folder}/")


@contextmanager
def holding(folder: Path, steps: str) -> Iterator[int]:
    """Yield the PID of a process that has done these steps in a folder."""
    command = [sys.executable, "-c", OPENS.format(steps=steps), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        process.communicate()


def test_a_file_is_recorded_once_with_all_its_holders(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    with holding(tmp_path, "a, r, o = open('log', 'ab'), open('log', 'rb'), open('other', 'w')") as process:
        (found,) = (one for one in outside_files_of([process], below(tmp_path)).files if one.path == str(path))
    seen = path.stat()
    assert found[:5] == (str(path), seen.st_dev, seen.st_ino, 100, seen.st_mtime_ns)
    modes = sorted(holder.flags & (os.O_ACCMODE | os.O_APPEND) for holder in found.holders)
    assert modes == [os.O_RDONLY, os.O_WRONLY | os.O_APPEND]
    assert all(holder.place.startswith("fd/") for holder in found.holders)
    assert found.is_written
    assert found.is_appended


def test_a_shared_writable_mapping_holds_its_file(tmp_path: Path) -> None:
    (tmp_path / "map").write_bytes(b"x" * mmap.PAGESIZE)
    steps = """
def map_file(mode, *flags):
    with open("map", mode) as file:
        return mmap.mmap(file.fileno(), 0, *flags)
kept = map_file("r+b"), map_file("rb", mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
for number in range(3, 20):
    try:
        os.close(number)
    except OSError:
        pass
"""
    with holding(tmp_path, steps) as process:
        (found,) = outside_files_of([process], below(tmp_path)).files
    ((_, place, flags, _),) = found.holders
    assert place.startswith("map_files/")
    assert flags == os.O_RDWR
    assert not found.is_appended


def test_what_is_not_outside_or_deleted_or_no_file_is_not_recorded(tmp_path: Path) -> None:
    steps = """
os.mkfifo("pipe")
kept = open("deleted", "w"), open("kept", "w")
os.open("pipe", os.O_RDWR), os.open(".", os.O_RDONLY), os.open("seen", os.O_PATH)
os.unlink("deleted")
"""
    (tmp_path / "seen").touch()
    with holding(tmp_path, steps) as process:
        assert [one.path for one in outside_files_of([process], below(tmp_path)).files] == [f"{tmp_path}/kept"]
        assert outside_files_of([process], lambda _: False) == OutsideFiles()


def test_a_process_that_has_ended_holds_nothing() -> None:
    assert outside_files_of([2**22], lambda _: True) == OutsideFiles()


@pytest.mark.parametrize(("bound", "value"), [("MOST_PLACES", 3), ("MOST_FILES", 0)])
def test_the_record_is_bounded(bound: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_files, bound, value)
    with holding(tmp_path, "kept = open('file', 'w')") as process, pytest.raises(ValueError, match="they have more"):
        outside_files_of([process], below(tmp_path))


def test_the_bytes_of_the_record_are_bounded_and_kept(tmp_path: Path) -> None:
    most = 20 * 64 + 128 + len(str(tmp_path / "file")) + 2
    with holding(tmp_path, "kept = [open('file', 'w') for _ in range(20)]") as process:
        with pytest.raises(ValueError, match="or 1000 bytes"):
            outside_files_of([process], below(tmp_path), 1000)
        assert len(encode(outside_files_of([process], below(tmp_path), most))) <= most


def test_the_record_is_read_also_where_names_are_no_text(tmp_path: Path) -> None:
    holder = Holder(7, "fd/3", os.O_WRONLY, 3)
    one = OutsideFile("/data/log", 1, 2, 3, 4, (holder, Holder(8, "map_files/7f00", os.O_RDWR, 0)))
    files = OutsideFiles((one, one._replace(path=os.fsdecode(b"/data/\xff"))), "")
    (tmp_path / OUTSIDE_FILES).write_text(encode(files))
    assert read_outside_files(str(tmp_path)) == files


def test_a_snapshot_of_an_earlier_version_has_no_record(tmp_path: Path) -> None:
    assert read_outside_files(str(tmp_path)) is None


@pytest.mark.parametrize("place", ["fd/../../1/root", "cwd", "map_files/zz", "fd/1\0", "mem", "fd/"])
def test_a_place_that_leads_elsewhere_is_refused(tmp_path: Path, place: str) -> None:
    files = OutsideFiles((OutsideFile("/x", 1, 2, 3, 4, (Holder(1, place, 1, 0),)),))
    (tmp_path / OUTSIDE_FILES).write_text(encode(files))
    with pytest.raises(ValueError, match="files outside the snapshot is unreadable"):
        read_outside_files(str(tmp_path))


DEEP = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
FILES = st.lists(st.tuples(st.just("/x") | DEEP, DEEP, DEEP, DEEP, DEEP, st.just([[1, "fd/1", 1]]) | DEEP), max_size=4)
WRITTEN = (
    st.fixed_dictionaries(
        {"version": st.just(1), "problem": st.just("") | DEEP, "files": FILES | DEEP},
    )
    | DEEP
).map(json.dumps) | st.sampled_from(["[" * 100_000, "9" * 5_000, "\ud800", '{"version": 2}'])


@given(WRITTEN | st.text(max_size=30))
@settings(deadline=None, max_examples=200)
def test_whatever_is_written_is_read_or_refused_in_words(written: str) -> None:
    with tempfile.TemporaryDirectory() as images:
        Path(images, OUTSIDE_FILES).write_text(written, errors="surrogatepass")
        try:
            files = read_outside_files(images)
        except ValueError:
            return
    assert isinstance(files, OutsideFiles)
    encode(files)
