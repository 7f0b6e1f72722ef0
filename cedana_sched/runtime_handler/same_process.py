"""Identity of a recorded process, by PID and start time, and whether it still runs.

A process runs until the last of its threads has ended. One whose first thread ends before the others (`pthread_exit` in
`main`) is a zombie by /proc/PID/stat, but its pidfd is exact: it becomes readable when no thread is left. Standard
library only.
"""

from __future__ import annotations

import errno
import os
import select
from typing import Final

_NO_PROCESS: Final = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})
"""Errors of pidfd_open(2) if the number is free, or a thread's; for the latter kernels differ."""


def open_running(pid: int, started: int) -> int | None:
    """Return a pidfd of the process, which the caller closes; None if it has ended, also if it was not reaped yet.

    `started` is field 22 of /proc/PID/stat, in clock ticks since the boot.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise
    try:
        is_it = start_time_of(pid) == started and not _has_ended(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if is_it:
        return descriptor
    os.close(descriptor)
    return None


def is_running(pid: int, started: int) -> bool:
    """Return whether the process runs."""
    descriptor = open_running(pid, started)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def start_time_of(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # a process may have any name
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _has_ended(descriptor: int) -> bool:
    waiter = select.poll()  # select(2) accepts no descriptor above 1023
    waiter.register(descriptor, select.POLLIN)
    return bool(waiter.poll(0))
