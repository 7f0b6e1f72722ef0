"""POSIX locks of restored processes: taken by the processes themselves, before their first instruction.

A process loses all its POSIX locks on a file when it closes *any* descriptor of it (fcntl(2)). CRIU 4.2.1 restores
locks first and maps files afterwards, by descriptors of its own, which it closes: who has locked a file and mapped it,
as SQLite does with the `-shm` of a WAL, comes back without its lock. And CRIU waits without end for a lock that
somebody else has taken meanwhile (F_SETLKW). So the agent takes POSIX locks out of CRIU's images, and here they are
taken when CRIU has done all else:

    pre-resume      CRIU holds all threads right before their first instruction, and runs our script: it puts CRIU
                    into another control group, and freezes that of the processes
    CRIU ends       it lets the processes go, into the frozen group
    `take_locks`    seizes all threads, thaws them into ptrace's arms, has each owner call fcntl(2), lets all go

A lock that cannot be had makes the restore fail: no process runs without its lock. Used by the handler for containers,
and by `snapshot.restore`; standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import signal
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from cedana_sched.runtime.beneath import open_regular
from cedana_sched.runtime.injection import InjectionError, Stopped

_FLOCK = "hhxxxxqqixxxx"
_KINDS = {fcntl.F_RDLCK: "a read lock", fcntl.F_WRLCK: "a write lock"}
_ROOT = "/sys/fs/cgroup"
_FREEZE_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_SCRIPT = """\
#!/bin/sh
# Run by CRIU: keeps restored processes from their first instruction, until they have their locks again.
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] || exit 0
outside={outside}
group={group}
lose() {{ kill -9 "$CRTOOLS_INIT_PID"; exit 1; }}
if [ -z "$group" ]; then
    while IFS=: read -r number controllers path; do
        case "$number:,$controllers," in {line}) group={root}$path ;; esac
    done <"/proc/$CRTOOLS_INIT_PID/cgroup"
fi
[ -n "$group" ] && [ "$group" != "$outside" ] || lose
for process in $PPID $$; do echo "$process" >"$outside/cgroup.procs" || lose; done
if [ -e "$group/freezer.state" ]; then
    echo FROZEN >"$group/freezer.state" || lose
else
    echo 1 >"$group/cgroup.freeze" || lose
fi
echo "$group" >{held}
"""


class LockError(Exception):
    """A lock could not be taken again; nothing of the restored processes runs."""


class PosixLock(NamedTuple):
    """One lock, as its process sees itself."""

    pid: int
    """In its own PID namespace."""
    descriptor: int
    kind: int
    """F_RDLCK or F_WRLCK."""
    start: int
    length: int
    """0: up to the end, however far that goes."""


def write_script(work: str, group: str | None = None) -> str:
    """Write the action script for a CRIU of this process's descendants; returns its path.

    Args:
        work: a folder of this restore's own, where CRIU runs.
        group: the control group of the restored processes; None: the one that their first process is in.
    """
    is_v1 = _is_v1(group or f"{_ROOT}/freezer")
    root = _root_of(group) if group else f"{_ROOT}/freezer" if is_v1 else _ROOT
    script, held = f"{work}/hold", f"{work}/held"
    with suppress(FileNotFoundError):
        os.unlink(held)
    text = _SCRIPT.format(
        outside=shlex.quote(root + _own_group(is_v1=is_v1)),
        group=shlex.quote(group or ""),
        line="*,freezer,*" if is_v1 else "0:*",
        root=shlex.quote(root),
        held=shlex.quote(held),
    )
    with open(script, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(text)
    return script


def take_locks(work: str, locks: Iterable[PosixLock]) -> None:
    """Give restored processes their locks, and let them run.

    Raises:
        LockError: they were not held back, or a lock cannot be had; all of them have been killed.
    """
    try:
        with open(f"{work}/held", encoding="utf-8") as file:
            group = file.read().rstrip("\n")
    except FileNotFoundError as error:
        raise LockError("the restored processes could not be held back until they have their locks") from error
    try:
        _wait_frozen(group)
        processes = _members(group)
        with Stopped(processes) as stopped:
            _thaw(group)
            stopped.wait_stopped()
            try:
                _take(stopped, processes, locks)
            except (InjectionError, LockError):
                _kill(processes)
                raise
    except (InjectionError, OSError) as error:
        _kill_group(group)
        raise LockError(f"the processes could not take their locks again: {error}") from error
    except LockError:
        _kill_group(group)
        raise


def _take(stopped: Stopped, processes: list[int], locks: Iterable[PosixLock]) -> None:
    numbers = {_number_inside(process): process for process in processes}
    for lock in locks:
        process = numbers.get(lock.pid)
        if process is None:
            raise LockError(f"process {lock.pid}, which held a lock, has not come back")
        wanted = struct.pack(_FLOCK, lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
        result = stopped.fcntl(process, lock.descriptor, fcntl.F_SETLK, wanted)
        if result < 0:
            raise LockError(_refusal(process, lock, -result))


def _refusal(process: int, lock: PosixLock, code: int) -> str:
    path = f"/proc/{process}/fd/{lock.descriptor}"
    with suppress(OSError):
        path = os.readlink(path)
    what = f"{_KINDS.get(lock.kind, 'a lock')} on {path}"
    if code not in (errno.EAGAIN, errno.EACCES):
        return f"process {lock.pid} cannot take {what} again: {os.strerror(code)}"
    by = f" by process {holder}" if (holder := _holder(process, lock)) > 0 else ""
    return f"process {lock.pid} held {what}, which has been locked{by} meanwhile"


def _holder(process: int, lock: PosixLock) -> int:
    """Who has it; 0 when nobody can be named."""
    wanted = struct.pack(_FLOCK, lock.kind, os.SEEK_SET, lock.start, lock.length, 0)
    try:
        seen = os.open(f"/proc/{process}/fd/{lock.descriptor}", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        descriptor = open_regular(seen)
    except OSError:  # a pipe would keep us for ever, and a device may act
        return 0
    finally:
        os.close(seen)
    try:
        kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else holder


def _number_inside(process: int) -> int:
    with (
        suppress(FileNotFoundError, ProcessLookupError),
        open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as status,
    ):
        for line in status:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _own_group(*, is_v1: bool) -> str:
    with open("/proc/self/cgroup", encoding="utf-8") as table:
        for line in table:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if "freezer" in controllers.split(",") if is_v1 else number == "0":
                return path.rstrip("/")
    return ""


def _is_v1(group: str) -> bool:
    """Only the root of the v1 hierarchy has no `freezer.state`."""
    return os.path.exists(f"{group}/freezer.state") or (
        os.path.exists(f"{group}/cgroup.procs") and not os.path.exists(f"{group}/cgroup.controllers")
    )


def _root_of(group: str) -> str:
    while os.path.exists(f"{os.path.dirname(group)}/cgroup.procs"):
        group = os.path.dirname(group)
    return group


def _members(group: str) -> list[int]:
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def _wait_frozen(group: str) -> None:
    deadline = time.monotonic() + _FREEZE_SECONDS
    while not _is_frozen(group):
        if time.monotonic() > deadline:
            raise LockError("the restored processes could not be held back: their control group does not freeze")
        time.sleep(_LOOK_SECONDS)  # the v1 freezer has no event to wait for


def _is_frozen(group: str) -> bool:
    if os.path.exists(f"{group}/freezer.state"):
        with open(f"{group}/freezer.state", encoding="ascii") as file:
            return file.read().strip() == "FROZEN"
    with open(f"{group}/cgroup.events", encoding="ascii") as file:
        return "frozen 1" in file.read().splitlines()


def _thaw(group: str) -> None:
    name, value = ("freezer.state", "THAWED") if os.path.exists(f"{group}/freezer.state") else ("cgroup.freeze", "0")
    with open(f"{group}/{name}", "w", encoding="ascii") as file:
        file.write(value)


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _kill_group(group: str) -> None:
    """A frozen process dies when it is thawed, without another instruction."""
    with suppress(OSError):  # the group is gone
        _kill(_members(group))
        _thaw(group)
