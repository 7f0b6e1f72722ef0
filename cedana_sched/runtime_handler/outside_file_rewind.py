"""Comparison of files outside a snapshot with their record, through descriptors of held processes; and their rewind.

A path may lead elsewhere by now, so files are compared and truncated only through what the restored processes have open
themselves. All files are compared first; they are truncated last (`held_file_truncation`), when nothing else of the
container can fail.

Containers of a pod are restored one after another, and may share files. The first that could write to a file judges it:
once it runs, the file changes. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from cedana_sched.runtime_handler.file_change_rules import Action, FileState, Judgement, OnChange, judge_file
from cedana_sched.runtime_handler.held_file_truncation import Truncation, truncate_held_files
from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError
from cedana_sched.runtime_handler.outside_files import FileKey, OutsideFiles, read_outside_files
from cedana_sched.runtime_handler.volume_file_comparison import ProcEntries

MOST_NOTES = 8
"""Files named in a result; more are counted."""
_REMEDY = "put the file back as it was at the snapshot, or start without the snapshot"


class FilesRanAheadError(RestoredProcessesError):
    """Files changed, and the policy for changed files decides what follows."""


class ChangePolicy(NamedTuple):
    """What applies to the files of one container."""

    on_change: OnChange = OnChange.NONE
    judged: frozenset[FileKey] = frozenset()
    """Files, by their state at the dump, that a restored container of the pod had open for writing."""


class Comparison(NamedTuple):
    """What is to be done; nothing has been changed."""

    notes: tuple[str, ...] = ()
    rewinds: tuple[Truncation, ...] = ()


def compare_with_record(held: HeldProcesses, images: str, policy: ChangePolicy) -> Comparison:
    """Compare held processes with the record beside their images; see `compare_outside_files`.

    Raises:
        RestoredProcessesError: also if the record's format is unknown.
        OSError: a file or process cannot be read.
    """
    try:
        files = read_outside_files(images)
    except ValueError as error:
        raise RestoredProcessesError(f"{error} (start without the snapshot)") from error
    return compare_outside_files(held, files, policy)


def compare_outside_files(held: HeldProcesses, files: OutsideFiles | None, policy: ChangePolicy) -> Comparison:
    """Compare the files that held processes have open with their record.

    Args:
        held: all processes of the container or job.
        files: the record; None: nothing is known, and nothing is compared.
        policy: what applies to changed files.

    Raises:
        FilesRanAheadError: the policy for changed files decides what follows.
        RestoredProcessesError: the processes must not run with these files, whatever the policy is.
        OSError: a file or process cannot be read.
    """
    if files is None:
        return Comparison()
    if files.problem:
        if policy.on_change in (OnChange.COLD, OnChange.FAIL):
            raise FilesRanAheadError(
                f"it is unknown whether its files have changed: {files.problem}; and the policy has onVolumeChange: "
                f"{policy.on_change} (start without the snapshot, or with onVolumeChange: {OnChange.REWIND})"
            )
        return Comparison((f"it is unknown whether its files have changed: {files.problem}",))
    by_namespace_pid = held.by_namespace_pid()
    entries: dict[int, ProcEntries] = {}
    notes: list[str] = []
    rewinds: list[Truncation] = []
    for file in files.files:
        if (file.device, file.inode) in policy.judged:
            continue
        holder = next((one for one in file.holders if one.is_writable), next(iter(file.holders), None))
        process = by_namespace_pid.get(holder.pid) if holder is not None else None
        if holder is None or process is None:
            continue  # `volume_file_comparison` has looked for all that was open
        if process not in entries:
            entries[process] = ProcEntries(process)
        key, now = _state_of(entries[process].entry_path(holder.place))
        judgement = judge_file(file, now, policy.on_change)
        if judgement.action is Action.REWIND:
            rewinds.append(Truncation(process, holder, file.path, key, file.size, judgement.text))
        else:
            notes += _notes_of(judgement, policy.on_change)
    return Comparison(tuple(notes), tuple(rewinds))


def rewind_files(held: HeldProcesses, comparison: Comparison) -> tuple[str, ...]:
    """Truncate the files that ran ahead; return notes on all changed files, of bounded number.

    Raises:
        RestoredProcessesError: a file is not the compared one any more; earlier ones may be truncated.
        OSError: a file cannot be truncated.
    """
    truncate_held_files(held, comparison.rewinds)
    notes = [*(f"{rewind.change}: truncated to its size at the snapshot" for rewind in comparison.rewinds)]
    notes += comparison.notes
    more = len(notes) - MOST_NOTES
    return tuple(notes[:MOST_NOTES]) + ((f"{more} more files have changed",) if more > 0 else ())


def written_keys(files: OutsideFiles | None) -> Iterator[FileKey]:
    """Yield the files that the processes of a record could write to."""
    for file in files.files if files is not None else ():
        if file.is_written:
            yield file.device, file.inode


def _notes_of(judgement: Judgement, on_change: OnChange) -> tuple[str, ...]:
    """Return the note of a file that is left; raise if it is a reason to refuse."""
    if judgement.action is Action.DECIDE:
        raise FilesRanAheadError(
            f"{judgement.text}, and the policy has onVolumeChange: {on_change} ({_REMEDY}; "
            f"onVolumeChange: {OnChange.REWIND} truncates files that have grown)"
        )
    if judgement.action is Action.REFUSE:
        raise RestoredProcessesError(f"{judgement.text} ({_REMEDY})")
    return (f"{judgement.text}: left as it is",) if judgement.action is Action.NOTE else ()


def _state_of(entry: str) -> tuple[FileKey, FileState]:
    seen = os.stat(entry)
    if not stat.S_ISREG(seen.st_mode):
        raise RestoredProcessesError(f"{os.readlink(entry)!r:.200} is no regular file any more ({_REMEDY})")
    return (seen.st_dev, seen.st_ino), FileState(seen.st_ino, seen.st_size, seen.st_mtime_ns)
