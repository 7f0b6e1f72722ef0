"""Refusal of a restore if files outside the snapshot have changed since, where the policy for these decides.

The files that a job itself had open for writing are compared with their record beside the images
(`runtime_handler.outside_files`). Its own output files do not count: each job that prints would have run ahead, and
they are truncated to what it had printed (`grown_file_truncation`).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cedana_sched.model.errors import FilesChangedError, RestoreError
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.held_processes import HeldProcesses
from cedana_sched.runtime_handler.outside_file_rewind import ChangePolicy, FilesRanAheadError, compare_outside_files
from cedana_sched.runtime_handler.outside_files import OutsideFiles, read_outside_files

_UNRECORDED = OutsideFiles(problem="the snapshot has no record of them")


def has_to_be_unchanged(on_change: OnChange) -> bool:
    """Return whether processes are not restored if their files have changed."""
    return on_change in (OnChange.COLD, OnChange.FAIL)


def read_record(images: Path) -> OutsideFiles | None:
    """Return the record of a job's files beside its images; None if there is none.

    Raises:
        RestoreError: it is unreadable.
        OSError: it cannot be read now.
    """
    try:
        return read_outside_files(str(images))
    except ValueError as error:
        raise RestoreError(str(error), remedy="start it without the snapshot, or from an earlier one") from error


def require_unchanged_files(
    held: HeldProcesses, images: Path, on_change: OnChange, outputs: Collection[Path] = ()
) -> None:
    """Refuse held processes whose files have changed since their snapshot, if the policy requires it.

    Args:
        held: all processes of the job.
        images: the folder of their images and records.
        on_change: the policy.
        outputs: the job's own output files, which do not count.

    Raises:
        FilesChangedError: a file has changed, or it is unknown whether one has.
        RestoreError: the record is unreadable.
        RestoredProcessesError: the processes must not run with these files, whatever the policy is.
        OSError: a file or process cannot be read.
    """
    if not has_to_be_unchanged(on_change):
        return
    record = read_record(images) or _UNRECORDED
    ignored = {str(path) for path in outputs}
    counted = record._replace(files=tuple(file for file in record.files if file.path not in ignored))
    try:
        compare_outside_files(held, counted, ChangePolicy(on_change))
    except FilesRanAheadError as error:
        raise FilesChangedError(str(error)) from error
