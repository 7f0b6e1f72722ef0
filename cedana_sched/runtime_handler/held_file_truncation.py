"""Truncation of files through descriptors of held processes, and through nothing else.

A path may lead elsewhere by now, to a file of root's for one. And a process that was killed meanwhile may have left its
PID to another one, whose file must not be truncated. So a file is opened through the place where a held process has it
open for writing; then it must still be the expected file, and the process one of the held group. Standard library only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError
from cedana_sched.runtime_handler.outside_files import FileKey, Holder, is_writable, open_state_of
from cedana_sched.runtime_handler.safe_open import open_regular_file
from cedana_sched.runtime_handler.volume_file_comparison import ProcEntries

_TOGETHER = 64
"""Files that are open at a time."""


class Truncation(NamedTuple):
    """One file that is to be truncated."""

    process: int | None
    """As this process sees it; None if it has ended."""
    holder: Holder
    """Where the process has the file open for writing."""
    path: str
    """As the kernel shows it."""
    key: FileKey
    """The file now."""
    size: int
    """Bytes that are left."""
    change: str
    """How the file has changed, as the beginning of an error."""


def truncate_held_files(held: HeldProcesses, truncations: Sequence[Truncation]) -> None:
    """Truncate files of held processes.

    Raises:
        RestoredProcessesError: a file is not the expected one any more, or its process has ended; earlier ones may be
            truncated.
        OSError: a file cannot be opened or truncated.
    """
    for start in range(0, len(truncations), _TOGETHER):
        _truncate_together(held, truncations[start : start + _TOGETHER])


def _truncate_together(held: HeldProcesses, truncations: Sequence[Truncation]) -> None:
    """Open some files, check what was opened, and truncate them.

    The group is read after the descriptors are open: a process that is in it then has been in it all the time.
    """
    opened: list[int] = []
    try:
        opened.extend(map(_open_held_file, truncations))  # what was opened before an error is in the list
        living = frozenset(held.current_processes())
        for one in truncations:
            if one.process not in living:
                raise _ended(one)
        for one, descriptor in zip(truncations, opened, strict=True):
            os.ftruncate(descriptor, one.size)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_held_file(truncation: Truncation) -> int:
    """Open for writing what a held process has open for writing."""
    if truncation.process is None:
        raise _ended(truncation)
    entry = ProcEntries(truncation.process).entry_path(truncation.holder.place)
    seen = os.open(entry, os.O_PATH | os.O_CLOEXEC)
    try:
        state = os.fstat(seen)
        is_same = (state.st_dev, state.st_ino) == truncation.key and os.readlink(entry) == truncation.path
        if not is_same or not is_writable(open_state_of(truncation.process, truncation.holder.place)[0]):
            raise RestoredProcessesError(f"{truncation.change}, and is not open for writing in its place any more")
        return open_regular_file(seen, os.O_WRONLY)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise RestoredProcessesError(f"{truncation.change}, and is no regular file any more") from error
        raise
    finally:
        os.close(seen)


def _ended(truncation: Truncation) -> RestoredProcessesError:
    return RestoredProcessesError(
        f"{truncation.change}, and process {truncation.holder.pid}, which writes it, ended before it was truncated"
    )
