"""Processes that are stopped (SIGSTOP, Ctrl-Z, job control) when their job is frozen: dumped, and left, as stopped.

CRIU cannot seize a process that is stopped *and* frozen: PTRACE_SEIZE turns a stop into a trap, and waits for it in
the kernel (ptrace_attach, JOBCTL_TRAPPING), while the v1 freezer keeps the process from ever getting there. It also
gives up on those that SIGTTIN or SIGTTOU stopped. What it does know is a SIGSTOP that is *pending* (compel,
`skip_sigstop`). So, while everything is frozen and nothing can execute, a stop becomes a pending one: SIGCONT takes
the stop away, and a SIGSTOP for every thread flushes the SIGCONT, whose handler therefore never runs, and stops each
thread before its next instruction. CRIU dumps such a process as stopped, and its restore stops it again.

CRIU takes the pending stops out of the queues, and puts one back for the process; threads beside the first would
execute a few instructions before it reaches them, and a CRIU that is killed puts nothing back. So they are made
pending again before the thaw. Which processes that concerns stands in a file beside CRIU's log, for whoever cleans up
after a capture that was killed.

A parent that waits for stops (WUNTRACED, WCONTINUED) is told once more, as after every restore.

Called by `dump` and `aftermath`.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

FILE_NAME = "stopped.json"

_WAITING_IN = "do_signal_stop"  # /proc/PID/wchan; `State` shows frozen ones as D (v1), and v2 as T
_STOPPED = "T"

_libc = ctypes.CDLL(None, use_errno=True)


class _Stopped(msgspec.Struct, frozen=True):
    pid: int
    started: str
    """Field 22 of /proc/PID/stat: the PID may be another process's by the time that it is read."""


def stopped_processes(pids: Iterable[int]) -> list[int]:
    """Of frozen processes those that a signal has stopped."""
    return [pid for pid in pids if _is_stopped(Path("/proc", str(pid)))]


def make_stops_pending(pids: Iterable[int], workdir: Path) -> list[int]:
    """Turn the stops of frozen processes into pending ones; returns which processes were stopped."""
    found = stopped_processes(pids)
    (workdir / FILE_NAME).unlink(missing_ok=True)
    if found:
        named = [_Stopped(pid, started) for pid in found if (started := _started(pid))]
        (workdir / FILE_NAME).write_bytes(msgspec.json.encode(named))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        _stop_threads(pid)
    return found


def stop_again(workdir: Path) -> None:
    """Make the stops pending again that `make_stops_pending` found, before their processes may run."""
    with suppress(FileNotFoundError):
        for one in msgspec.json.decode((workdir / FILE_NAME).read_bytes(), type=list[_Stopped]):
            if _started(one.pid) == one.started:
                _stop_threads(one.pid)


def _stop_threads(pid: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):  # it was killed meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            _libc.tgkill(pid, int(task.name), signal.SIGSTOP)


def _is_stopped(process: Path) -> bool:
    """By its threads: the first one may have ended, and shows as a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(_state(task) == _STOPPED or _waits(task) for task in (process / "task").iterdir())
    return False


def _state(task: Path) -> str:
    return _fields(task)[0]


def _waits(task: Path) -> bool:
    return (task / "wchan").read_text().startswith(_WAITING_IN)


def _started(pid: int) -> str | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        return _fields(Path("/proc", str(pid)))[19]
    return None


def _fields(process: Path) -> list[str]:
    """Those of `stat` after the command, from the third on."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
