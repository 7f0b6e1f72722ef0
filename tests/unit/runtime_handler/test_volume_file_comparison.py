"""What is written down of files of volumes, and when one is another file than it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.runtime_handler import volume_file_comparison
from cedana_sched.runtime_handler.volume_file_comparison import (
    VOLUME_FILES,
    VolumeFile,
    VolumeFiles,
    encode,
    is_within,
    objection_to_files,
    read_record,
    volume_files_of,
)

HELD = VolumeFile(7, "fd/3", "/data/log", 0o100600, 1000, 1000)


def difference(held: VolumeFile, now: VolumeFile) -> str | None:
    return volume_file_comparison._describe_difference(held, now, {1000, 3000})


@pytest.mark.parametrize(
    ("path", "is_in"),
    [
        ("/data", True),
        ("/data/a/b", True),
        ("/data (deleted)", True),
        ("/data/a (deleted)", True),
        ("/database", False),
        ("/", False),
        ("pipe:[17]", False),
        ("/memfd:data (deleted)", False),
    ],
)
def test_a_file_is_in_the_volume_below_which_it_is(path: str, is_in: bool) -> None:
    assert is_within(path, ["/data", "/dev/shm"]) == is_in


@pytest.mark.parametrize(
    ("path", "is_in"),
    [
        ("/", True),
        ("/data/a (deleted)", True),
        ("/dev/null", True),
        ("/dev/shm", False),
        ("/dev/shm/a", False),
        ("/dev/shmem", True),
        ("pipe:[17]", False),
    ],
)
def test_a_file_of_a_mount_that_is_saved_is_in_no_volume(path: str, is_in: bool) -> None:
    assert is_within(path, ["/"], ["/dev/shm", "/proc"]) == is_in


def test_memory_that_has_a_name_is_no_file(tmp_path: Path) -> None:
    """A deleted file of the host is one: the snapshot contains it, but CRIU makes it in the folder where it was."""
    opens = (
        "import mmap, os, sys; memory = os.memfd_create('x'); shared = mmap.mmap(-1, 4096); "
        "deleted = open(sys.argv[1]); os.unlink(sys.argv[1]); print(flush=True); sys.stdin.read()"
    )
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", opens, str(tmp_path / "file")]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        files = volume_files_of([process.pid], ["/"], saved=["/proc"])
        process.communicate()
    assert [one.path for one in files.files if one.path.endswith("(deleted)")] == [f"{tmp_path}/file (deleted)"]
    assert files.saved == ("/proc",)


def test_what_is_written_down_is_read_also_where_names_are_no_text(tmp_path: Path) -> None:
    files = VolumeFiles(("/data", "/dev/shm"), (HELD, HELD._replace(path=os.fsdecode(b"/data/\xff"))), ("/data/own",))
    (tmp_path / VOLUME_FILES).write_text(encode(files))
    assert read_record(str(tmp_path)) == files


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 2}', '{"version": 1}', '{"version": 1, "volumes": [], "files": [[1]]}']
)
def test_what_is_written_down_in_another_way_is_not_guessed(tmp_path: Path, content: str) -> None:
    (tmp_path / VOLUME_FILES).write_text(content)
    with pytest.raises(ValueError, match=r".+"):
        read_record(str(tmp_path))


def test_who_holds_too_much_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_file_comparison, "MOST_PLACES", 3)
    with pytest.raises(ValueError, match="they hold more than"):
        volume_files_of([os.getpid()], ["/data"])


def test_what_is_written_down_is_bounded_though_a_process_opens_long_names_often(tmp_path: Path) -> None:
    """The agent keeps it of all containers of a pod; a process may have one file open 32,768 times."""
    folder = tmp_path.joinpath(*["\xff" * 100] * 10)
    folder.mkdir(parents=True)
    (folder / "file").touch()
    opens = "import sys; kept = [open(sys.argv[1]) for _ in range(20)]; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", opens, str(folder / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(ValueError, match="takes more than 40000 bytes"):
            volume_files_of([process.pid], [str(tmp_path)], 40_000)
        files = volume_files_of([process.pid], [str(tmp_path)], 400_000)
        process.communicate()
    assert sum(one.path.endswith("/file") for one in files.files) == 20
    assert 40_000 < len(encode(files)) <= 400_000


def test_a_process_of_which_one_file_cannot_be_seen_is_not_taken_for_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system of the tenant's may say that an open file is not there: what comes after it counts."""

    def look(*_: object) -> VolumeFile:
        raise FileNotFoundError

    monkeypatch.setattr(volume_file_comparison, "_stat_volume_file", look)
    with pytest.raises(FileNotFoundError):
        volume_files_of([os.getpid()], ["/"])


def test_a_process_that_has_ended_holds_nothing() -> None:
    assert volume_files_of([2**22], ["/data"]) == VolumeFiles(("/data",), ())


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (HELD, None),
        (HELD._replace(group=3000), None),
        (HELD._replace(path="/etc/shadow"), "it leads to /etc/shadow"),
        (HELD._replace(path="/data/log (deleted)"), "it leads to /data/log (deleted)"),
        (HELD._replace(mode=0o40600), "mode 100600 in the snapshot, 40600 now"),
        (HELD._replace(mode=0o104600), "mode 100600 in the snapshot, 104600 now"),
        (HELD._replace(user=0), "owner 1000 in the snapshot, 0 now"),
        (HELD._replace(group=0), "group 1000 in the snapshot, 0 now"),
    ],
)
def test_a_file_is_the_same_by_path_type_mode_and_owner(now: VolumeFile, said: str | None) -> None:
    assert difference(HELD, now) == said


@pytest.mark.parametrize(
    ("path", "is_same"),
    [
        ("/data/log (deleted)", True),
        ("/data/log.cr_link (deleted)", True),
        ("/data/log.cr.1f.ghost (deleted)", True),
        ("/data/log.cr_link", False),
        ("/data/log.d/x.ghost (deleted)", False),
        ("/data/log2 (deleted)", False),
        ("/etc/log.ghost (deleted)", False),
        ("/data/log", False),
    ],
)
def test_a_deleted_file_may_bear_a_name_of_crius(path: str, is_same: bool) -> None:
    deleted = HELD._replace(path="/data/log (deleted)")
    assert (difference(deleted, deleted._replace(path=path)) is None) == is_same


def test_what_has_not_come_back_is_said_by_its_place() -> None:
    places = {"fd/3": "descriptor 3", "map_files/7f00": "mapping at 7f00", "cwd": "working directory"}
    for place, words in places.items():
        said = objection_to_files(VolumeFiles(("/data",), (HELD._replace(place=place),)), {}, ())
        assert said is not None
        assert said.startswith(f"/data/log, which process 7 holds as its {words}, is another file")
        assert "it was not restored" in said


DEEP = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
PLACES = st.sampled_from(["fd/0", "fd/x", "fd/../../1/root", "root/../etc", "map_files/zz", "map_files/0", "map_files/",
                          "cwd", "exe", "exe/x", "fd/\0", "fd/" + "9" * 400, "root", "", "/"]) | DEEP  # fmt: skip
FILES = st.lists(st.tuples(st.just(os.getpid()) | DEEP, PLACES, st.just("/x") | DEEP, DEEP, DEEP, DEEP), max_size=4)
WRITTEN = (
    st.fixed_dictionaries(
        {"version": st.just(1), "volumes": st.lists(st.text(max_size=4)) | DEEP, "files": FILES | DEEP, "saved": DEEP}
    )
    | DEEP
).map(json.dumps) | st.sampled_from(
    ["[" * 100_000, '{"version": 1, "volumes": ' + "[" * 100_000, "9" * 5_000, "\ud800"]
)


@given(WRITTEN | st.text(max_size=30))
@settings(deadline=None, max_examples=200)
def test_whatever_is_written_down_is_read_or_refused_in_words(written: str) -> None:
    with tempfile.TemporaryDirectory() as images:
        Path(images, VOLUME_FILES).write_text(written, errors="surrogatepass")
        try:
            held = read_record(images)
        except ValueError:
            return
    said = objection_to_files(held, {os.getpid(): os.getpid()}, ())
    assert said is None or isinstance(said, str)


@pytest.mark.parametrize("place", ["fd/../../1/root", "root/etc/shadow", "map_files/zz", "fd/1\0", "mem"])
def test_a_place_that_leads_elsewhere_is_not_looked_at(tmp_path: Path, place: str) -> None:
    file = [os.getpid(), place, "/x", 0o100644, 0, 0]
    (tmp_path / VOLUME_FILES).write_text(json.dumps({"version": 1, "volumes": ["/v"], "files": [file]}))
    with pytest.raises(ValueError, match="files of volumes is unreadable"):
        read_record(str(tmp_path))
