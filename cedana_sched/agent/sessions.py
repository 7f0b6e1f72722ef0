"""Waits for the processes that a killed capture process left behind: its CRIU, which undoes its dump and exits."""

from __future__ import annotations

import os

import psutil


def await_session_end(session: int, timeout_seconds: float) -> bool:
    """Wait until no process of the session is left; after the time allowed, kill what there is.

    Returns:
        True if they ended by themselves; False if they had to be killed (CRIU then left its work undone).
    """
    processes = [process for process in psutil.process_iter() if _session(process.pid) == session]
    processes = [process for process in processes if process.pid != os.getpid()]
    _, alive = psutil.wait_procs(processes, timeout=timeout_seconds)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=timeout_seconds)
    return not alive


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
