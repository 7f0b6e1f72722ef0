"""Files are compared and truncated through what held processes have open, and through nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler import outside_file_rewind
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.held_processes import RestoredProcessesError
from cedana_sched.runtime_handler.outside_file_rewind import (
    MOST_NOTES,
    ChangePolicy,
    FilesRanAheadError,
    compare_outside_files,
    compare_with_record,
    rewind_files,
    written_keys,
)
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, OutsideFiles
from tests.unit.runtime_handler.held_workload import HeldWorkload, held_workload

REWIND, COLD, NONE = ChangePolicy(OnChange.REWIND), ChangePolicy(OnChange.COLD), ChangePolicy()


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[HeldWorkload]:
    with held_workload(tmp_path) as workload:
        yield workload


def test_what_ran_ahead_is_truncated_last(workload: HeldWorkload) -> None:
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    assert workload.sizes() == (50, 50)
    notes = rewind_files(workload.held, comparison)
    assert workload.sizes() == (50, 0)
    assert notes == (
        f"{workload.data} has grown (0 bytes at the snapshot, 50 now): truncated to its size at the snapshot",
        f"{workload.log} has grown (10 bytes at the snapshot, 50 now): left as it is",
    )


def test_nothing_is_compared_without_a_record(workload: HeldWorkload) -> None:
    workload.grow()
    assert rewind_files(workload.held, compare_with_record(workload.held, str(workload.folder), REWIND)) == ()
    (workload.folder / OUTSIDE_FILES).write_text('{"version": 2}')
    with pytest.raises(RestoredProcessesError, match="is of version 2"):
        compare_with_record(workload.held, str(workload.folder), REWIND)


def test_a_record_that_could_not_be_made_decides_as_a_change(workload: HeldWorkload) -> None:
    unknown = OutsideFiles(problem="too many")
    with pytest.raises(FilesRanAheadError, match="it is unknown whether its files have changed: too many"):
        compare_outside_files(workload.held, unknown, COLD)
    assert compare_outside_files(workload.held, unknown, REWIND).rewinds == ()


def test_what_a_restored_container_of_the_pod_writes_is_judged_already(workload: HeldWorkload) -> None:
    workload.grow()
    policy = COLD._replace(judged=frozenset(written_keys(workload.files)))
    assert compare_outside_files(workload.held, workload.files, policy) == ((), ())


def test_the_process_of_a_descriptor_is_still_held_once_it_is_open(workload: HeldWorkload) -> None:
    """Else another process may have its PID."""
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    workload.list_members(1)
    with pytest.raises(RestoredProcessesError, match="ended before it was truncated"):
        rewind_files(workload.held, comparison)
    assert workload.sizes() == (50, 50)


@pytest.mark.parametrize("place", ["reader", "elsewhere"])
def test_only_what_is_open_for_writing_in_its_place_is_truncated(workload: HeldWorkload, place: str) -> None:
    workload.grow()
    comparison = compare_outside_files(workload.held, workload.files, REWIND)
    (rewind,) = comparison.rewinds
    if place == "reader":
        (data,) = (one for one in workload.files.files if one.path == str(workload.data))
        (reads,) = (one for one in data.holders if not one.is_writable)
        rewind = rewind._replace(holder=reads)
    else:
        rewind = rewind._replace(path="/elsewhere")
    with pytest.raises(RestoredProcessesError, match="is not open for writing in its place any more"):
        rewind_files(workload.held, comparison._replace(rewinds=(rewind,)))
    assert workload.sizes() == (50, 50)


def test_notes_are_bounded(workload: HeldWorkload) -> None:
    notes = rewind_files(workload.held, outside_file_rewind.Comparison(tuple(map(str, range(MOST_NOTES + 3)))))
    assert notes[MOST_NOTES:] == ("3 more files have changed",)
