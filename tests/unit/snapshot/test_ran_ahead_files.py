"""A restore is refused if files have changed since the snapshot, where the policy for these decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.errors import FilesChangedError, RestoreError
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, encode
from cedana_sched.snapshot.ran_ahead_files import require_unchanged_files
from tests.unit.runtime_handler.held_workload import HeldWorkload, held_workload

DECIDING = pytest.mark.parametrize("on_change", [OnChange.COLD, OnChange.FAIL])


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[HeldWorkload]:
    with held_workload(tmp_path) as workload:
        (tmp_path / OUTSIDE_FILES).write_text(encode(workload.files))
        yield workload


@DECIDING
def test_a_changed_file_is_named_with_its_sizes_and_a_remedy(workload: HeldWorkload, on_change: OnChange) -> None:
    require_unchanged_files(workload.held, workload.folder, on_change)
    workload.grow()
    with pytest.raises(FilesChangedError) as caught:
        require_unchanged_files(workload.held, workload.folder, on_change, [workload.log])
    assert f"{workload.data} has grown (0 bytes at the snapshot, 50 now)" in caught.value.message
    assert f"onVolumeChange: {on_change}" in caught.value.message
    assert "put the file back as it was at the snapshot" in caught.value.message
    assert workload.sizes() == (50, 50)


@DECIDING
def test_output_files_of_the_job_do_not_count(workload: HeldWorkload, on_change: OnChange) -> None:
    workload.grow()
    require_unchanged_files(workload.held, workload.folder, on_change, [workload.log, workload.data])


@pytest.mark.parametrize("on_change", [OnChange.NONE, OnChange.REWIND])
def test_no_other_policy_refuses(workload: HeldWorkload, on_change: OnChange) -> None:
    workload.grow()
    require_unchanged_files(workload.held, workload.folder, on_change)


@DECIDING
def test_without_a_record_it_is_unknown_whether_files_have_changed(workload: HeldWorkload, on_change: OnChange) -> None:
    (workload.folder / OUTSIDE_FILES).unlink()
    with pytest.raises(FilesChangedError, match=r"unknown whether .*: the snapshot has no record of them; .*: Rewind"):
        require_unchanged_files(workload.held, workload.folder, on_change)
    require_unchanged_files(workload.held, workload.folder, OnChange.REWIND)


def test_an_unreadable_record_is_named(workload: HeldWorkload) -> None:
    (workload.folder / OUTSIDE_FILES).write_text("{}")
    with pytest.raises(RestoreError, match="files outside the snapshot is unreadable") as caught:
        require_unchanged_files(workload.held, workload.folder, OnChange.COLD)
    assert not isinstance(caught.value, FilesChangedError)
    assert "start it without the snapshot" in caught.value.remedy
