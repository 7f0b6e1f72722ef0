"""Stopped processes (SIGSTOP, Ctrl-Z, job control) in a frozen job: dumped, and left, as stopped.

CRIU cannot seize a process that is stopped *and* frozen: PTRACE_SEIZE turns a stop into a trap, and waits for it in the
kernel (ptrace_attach, JOBCTL_TRAPPING), while the v1 freezer prevents the process from ever reaching it. CRIU also
gives up on processes stopped by SIGTTIN or SIGTTOU. But CRIU supports a *pending* SIGSTOP (compel, `skip_sigstop`). So,
while everything is frozen and nothing can execute, a stop is turned into a pending one: SIGCONT ends the stop, and a
SIGSTOP for every thread flushes the SIGCONT, whose handler therefore never runs, and stops each thread before its next
instruction. CRIU dumps such a process as stopped, and its restore stops it again.

CRIU removes the pending stops from the queues, and requeues one for the process; threads beside the first would execute
a few instructions before it reaches them, and a killed CRIU requeues nothing. So they are made pending again before the
thaw. A file beside CRIU's log lists the processes, for the cleanup after a killed capture.

A parent that waits for stops (WUNTRACED, WCONTINUED) gets one more notification, as after every restore.
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

_WAITING_IN = "do_signal_stop"  # /proc/PID/wchan; frozen ones have `State` D on v1, and T on v2
_STOPPED = "T"

_libc = ctypes.CDLL(None, use_errno=True)


class _StoppedProcess(msgspec.Struct, frozen=True):
    pid: int
    started: str
    """Field 22 of /proc/PID/stat: the PID may be reused by the time that it is read."""


def stopped_processes(pids: Iterable[int]) -> list[int]:
    """Return those of the frozen processes that a signal has stopped."""
    return [pid for pid in pids if _is_stopped(Path("/proc", str(pid)))]


def make_stops_pending(pids: Iterable[int], workdir: Path) -> list[int]:
    """Turn the stops of frozen processes into pending ones; return the stopped processes."""
    found = stopped_processes(pids)
    (workdir / FILE_NAME).unlink(missing_ok=True)
    if found:
        named = [_StoppedProcess(pid, started) for pid in found if (started := _read_start_time(pid))]
        (workdir / FILE_NAME).write_bytes(msgspec.json.encode(named))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        _stop_threads(pid)
    return found


def stop_again(workdir: Path) -> None:
    """Make the stops of `make_stops_pending` pending again, before their processes may run."""
    with suppress(FileNotFoundError):
        for one in msgspec.json.decode((workdir / FILE_NAME).read_bytes(), type=list[_StoppedProcess]):
            if _read_start_time(one.pid) == one.started:
                _stop_threads(one.pid)


def _stop_threads(pid: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):  # killed meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            _libc.tgkill(pid, int(task.name), signal.SIGSTOP)


def _is_stopped(process: Path) -> bool:
    """Return whether a process is stopped, by its threads: the first may have ended, and be a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(_task_state(task) == _STOPPED or _is_waiting_in_stop(task) for task in (process / "task").iterdir())
    return False


def _task_state(task: Path) -> str:
    return _read_stat_fields(task)[0]


def _is_waiting_in_stop(task: Path) -> bool:
    return (task / "wchan").read_text().startswith(_WAITING_IN)


def _read_start_time(pid: int) -> str | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        return _read_stat_fields(Path("/proc", str(pid)))[19]
    return None


def _read_stat_fields(process: Path) -> list[str]:
    """Return the fields of `stat` after the command, from the third on."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
