"""Files are compared and truncated through what held processes have open, and through nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler import outside_file_rewind
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError
from cedana_sched.runtime_handler.outside_file_rewind import (
    MOST_NOTES,
    ChangePolicy,
    FilesRanAheadError,
    compare_outside_files,
    compare_with_record,
    rewind_files,
    written_keys,
)
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, OutsideFiles, outside_files_of

REWIND, COLD, NONE = ChangePolicy(OnChange.REWIND), ChangePolicy(OnChange.COLD), ChangePolicy()
HOLD = """
import os, sys
os.chdir(sys.argv[1])
kept = [open("log", "ab"), open("data", "wb"), open("data", "rb")]
print(flush=True)
sys.stdin.read()
"""


class Workload:
    """A process in a pretended control group, with its files as they are at the dump."""

    def __init__(self, folder: Path, process: int) -> None:
        self.folder, self.process = folder, process
        self.group = folder / "group"
        self.group.mkdir()
        self.list_members(process)
        self.log, self.data = folder / "log", folder / "data"
        self.log.write_bytes(b"x" * 10)
        self.held = HeldProcesses(str(self.group))
        self.files = outside_files_of([process], lambda path: path in (str(self.log), str(self.data)))
        assert len(self.files.files) == 2

    def list_members(self, *processes: int) -> None:
        (self.group / "cgroup.procs").write_text("".join(f"{one}\n" for one in processes))

    def grow(self) -> None:
        for path in (self.log, self.data):
            os.truncate(path, 50)

    def sizes(self) -> tuple[int, int]:
        return self.log.stat().st_size, self.data.stat().st_size


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield Workload(tmp_path, process.pid)
        process.communicate()


def test_what_ran_ahead_is_truncated_last(workload: Workload) -> None:
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    assert workload.sizes() == (50, 50)
    notes = rewind_files(workload.held, comparison)
    assert workload.sizes() == (50, 0)
    assert notes == (
        f"{workload.data} has grown (0 bytes at the snapshot, 50 now): truncated to its size at the snapshot",
        f"{workload.log} has grown (10 bytes at the snapshot, 50 now): left as it is",
    )


def test_nothing_is_compared_without_a_record(workload: Workload) -> None:
    workload.grow()
    assert rewind_files(workload.held, compare_with_record(workload.held, str(workload.folder), REWIND)) == ()
    (workload.folder / OUTSIDE_FILES).write_text('{"version": 2}')
    with pytest.raises(RestoredProcessesError, match="is of version 2"):
        compare_with_record(workload.held, str(workload.folder), REWIND)


def test_a_record_that_could_not_be_made_decides_as_a_change(workload: Workload) -> None:
    unknown = OutsideFiles(problem="too many")
    with pytest.raises(FilesRanAheadError, match="it is unknown whether its files have changed: too many"):
        compare_outside_files(workload.held, unknown, COLD)
    assert compare_outside_files(workload.held, unknown, REWIND).rewinds == ()


def test_what_a_restored_container_of_the_pod_writes_is_judged_already(workload: Workload) -> None:
    workload.grow()
    policy = COLD._replace(judged=frozenset(written_keys(workload.files)))
    assert compare_outside_files(workload.held, workload.files, policy) == ((), ())


def test_the_process_of_a_descriptor_is_still_held_once_it_is_open(workload: Workload) -> None:
    """Else another process may have its PID."""
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    workload.list_members(1)
    with pytest.raises(RestoredProcessesError, match="ended before its files were rewound"):
        rewind_files(workload.held, comparison)
    assert workload.sizes() == (50, 50)


@pytest.mark.parametrize("place", ["reader", "elsewhere"])
def test_only_what_is_open_for_writing_in_its_place_is_truncated(workload: Workload, place: str) -> None:
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    (rewind,) = (one for one in comparison.rewinds if one.file.path == str(workload.data))
    if place == "reader":
        (reads,) = (one for one in rewind.file.holders if not one.is_writable)
        rewind = rewind._replace(holder=reads)
    else:
        rewind = rewind._replace(file=rewind.file._replace(path="/elsewhere"))
    with pytest.raises(RestoredProcessesError, match="is not open for writing in its place any more"):
        rewind_files(workload.held, comparison._replace(rewinds=(rewind,)))
    assert workload.sizes() == (50, 50)


def test_notes_are_bounded(workload: Workload) -> None:
    notes = rewind_files(workload.held, outside_file_rewind.Comparison(tuple(map(str, range(MOST_NOTES + 3)))))
    assert notes[MOST_NOTES:] == ("3 more files have changed",)
