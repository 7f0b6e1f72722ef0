"""POSIX locks of restored processes, acquired by the processes themselves before their first instruction.

A process loses all its POSIX locks on a file when it closes *any* descriptor of it (fcntl(2)). CRIU 4.2.1 restores
locks first and maps files afterwards, by descriptors of its own, which it closes: a process that has locked a file and
mapped it, as SQLite does with the `-shm` of a WAL, is restored without its lock. And CRIU waits forever for a lock that
another process has acquired meanwhile (F_SETLKW). So the agent removes POSIX locks from CRIU's images, and this module
acquires them after CRIU has done everything else: `retake_process_locks` seizes all threads of the held processes
(`runtime_handler.held_processes`) by ptrace, thaws them, makes each owner call fcntl(2), and detaches into the
frozen group again.

If a lock is unavailable, the restore fails: no process runs without its lock. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError, kill
from cedana_sched.runtime_handler.safe_open import open_regular_file
from cedana_sched.runtime_handler.system_call_injection import InjectionError, StoppedProcesses

_FLOCK = "hhxxxxqqixxxx"
_KINDS = {fcntl.F_RDLCK: "a read lock", fcntl.F_WRLCK: "a write lock"}


class PosixLock(NamedTuple):
    """One lock, in its process's own terms."""

    pid: int
    """In its own PID namespace."""
    descriptor: int
    kind: int
    """F_RDLCK or F_WRLCK."""
    start: int
    length: int
    """0: up to the end of the file, however it grows."""


def retake_process_locks(held: HeldProcesses, locks: Sequence[PosixLock]) -> None:
    """Make held processes acquire their locks; they are frozen again afterwards.

    Raises:
        RestoredProcessesError: a lock is unavailable.
    """
    if not locks:
        return
    try:
        with StoppedProcesses(held.processes) as stopped:
            held.thaw()
            stopped.wait_stopped()
            try:
                _inject_locks(stopped, held.by_namespace_pid(), locks)
            except (InjectionError, RestoredProcessesError):
                kill(held.processes)
                raise
            held.freeze()
    except (InjectionError, OSError) as error:
        raise RestoredProcessesError(f"the processes could not take their locks again: {error}") from error


def _inject_locks(stopped: StoppedProcesses, numbers: dict[int, int], locks: Iterable[PosixLock]) -> None:
    for lock in locks:
        process = numbers.get(lock.pid)
        if process is None:
            raise RestoredProcessesError(f"process {lock.pid}, which held a lock, was not restored")
        wanted = struct.pack(_FLOCK, lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
        result = stopped.call_fcntl(process, lock.descriptor, fcntl.F_SETLK, wanted)
        if result < 0:
            raise RestoredProcessesError(_lock_failure_text(process, lock, -result))


def _lock_failure_text(process: int, lock: PosixLock, code: int) -> str:
    path = f"/proc/{process}/fd/{lock.descriptor}"
    with suppress(OSError):
        path = os.readlink(path)
    what = f"{_KINDS.get(lock.kind, 'a lock')} on {path}"
    if code not in (errno.EAGAIN, errno.EACCES):
        return f"process {lock.pid} cannot take {what} again: {os.strerror(code)}"
    by = f" by process {holder}" if (holder := _lock_holder_of(process, lock)) > 0 else ""
    return f"process {lock.pid} held {what}, which has been locked{by} meanwhile"


def _lock_holder_of(process: int, lock: PosixLock) -> int:
    """Return the lock's holder; 0 if unknown."""
    wanted = struct.pack(_FLOCK, lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
    try:
        seen = os.open(f"/proc/{process}/fd/{lock.descriptor}", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        descriptor = open_regular_file(seen)
    except OSError:  # a pipe would block forever, and a device may act
        return 0
    finally:
        os.close(seen)
    try:
        kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else holder
