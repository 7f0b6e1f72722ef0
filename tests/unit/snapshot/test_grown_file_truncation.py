"""Grown files are truncated through what held processes have open for writing, and through nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.outside_files import OutsideFile, OutsideFiles
from cedana_sched.snapshot import grown_file_truncation
from cedana_sched.snapshot.grown_file_truncation import TruncatedFile, truncate_grown_files
from tests.unit.runtime_handler.held_workload import HeldWorkload, held_workload


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[HeldWorkload]:
    with held_workload(tmp_path) as workload:
        workload.grow()
        yield workload


def sizes_of(workload: HeldWorkload) -> dict[str, int]:
    return {str(workload.log): 10, str(workload.data): 0}


def find(monkeypatch: pytest.MonkeyPatch, *files: OutsideFile) -> None:
    """Have these found, as if they had changed since."""
    monkeypatch.setattr(grown_file_truncation, "outside_files_of", lambda *_, **__: OutsideFiles(files))


def data_of(workload: HeldWorkload) -> OutsideFile:
    (data,) = (one for one in workload.files.files if one.path == str(workload.data))
    return data._replace(size=50)


def test_grown_files_are_truncated_to_their_recorded_sizes(workload: HeldWorkload) -> None:
    truncated = truncate_grown_files(workload.held, sizes_of(workload))
    assert workload.sizes() == (10, 0)
    assert set(truncated) == {TruncatedFile(str(workload.data), 50, 0), TruncatedFile(str(workload.log), 50, 10)}


def test_nothing_is_truncated_if_a_file_is_shorter(workload: HeldWorkload) -> None:
    with pytest.raises(RestoreError, match="has 50 bytes now, and had 51"):
        truncate_grown_files(workload.held, sizes_of(workload) | {str(workload.log): 51})
    assert workload.sizes() == (50, 50)


def test_the_process_of_a_descriptor_is_still_held_once_it_is_open(workload: HeldWorkload) -> None:
    """Else another process may have its PID."""
    workload.list_members(1)
    with pytest.raises(RestoreError, match=r"has grown .* ended before it was truncated") as caught:
        truncate_grown_files(workload.held, sizes_of(workload))
    assert caught.value.remedy == "restore it again"
    assert workload.sizes() == (50, 50)


def test_a_process_that_has_ended_since_its_files_were_found_is_an_error_in_words(
    workload: HeldWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(workload)
    find(monkeypatch, data._replace(holders=tuple(one._replace(pid=2**22) for one in data.holders)))
    with pytest.raises(RestoreError, match=rf"{workload.data} has grown .* ended before it was truncated"):
        truncate_grown_files(workload.held, sizes_of(workload))
    assert workload.sizes() == (50, 50)


@pytest.mark.parametrize("change", ["reader", "inode", "path"])
def test_only_what_is_open_for_writing_in_its_place_is_truncated(
    workload: HeldWorkload, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    data = data_of(workload)
    if change == "reader":  # as if the place had been opened again, for reading
        (reads,) = (one for one in data.holders if not one.is_writable)
        (writes,) = (one for one in data.holders if one.is_writable)
        data = data._replace(holders=(reads._replace(flags=writes.flags),))
    elif change == "inode":
        data = data._replace(inode=data.inode + 1)
    else:
        data = data._replace(path=f"{data.path} (deleted)")
    find(monkeypatch, data)
    with pytest.raises(RestoreError, match="is not open for writing in its place any more"):
        truncate_grown_files(workload.held, {data.path: 0})
    assert workload.sizes() == (50, 50)


def test_the_name_of_a_file_is_printable_in_an_error(workload: HeldWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may give a file any name, and the error is written to the engine's log."""
    data = data_of(workload)._replace(path="/data\n\x1b[2J")
    for size in (0, 60):
        find(monkeypatch, data)
        with pytest.raises(RestoreError) as caught:
            truncate_grown_files(workload.held, {data.path: size})
        assert caught.value.message.isprintable()
