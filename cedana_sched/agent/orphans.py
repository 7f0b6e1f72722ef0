"""Waits for the CRIU of a killed capture process: its stream is broken, so it undoes its dump and exits."""

from __future__ import annotations

from pathlib import Path

import psutil

from cedana_sched.snapshot.aftermath import undo_killed_dump
from cedana_sched.snapshot.dump import LOG_NAME
from cedana_sched.snapshot.freezer import members
from cedana_sched.snapshot.toolchain import Toolchain

PATIENCE_SECONDS = 10.0


def await_orphan(toolchain: Toolchain, work_directory: Path, freezer: Path) -> bool:
    """Return when no CRIU works in this dump's directory any more.

    Returns:
        True if it ended by itself, or was not there; False if it had to be killed, and its traces removed.
    """
    orphans = [process for process in psutil.process_iter() if str(work_directory) in _words(process)]
    _, alive = psutil.wait_procs(orphans, timeout=PATIENCE_SECONDS)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE_SECONDS)
    if alive:
        undo_killed_dump(toolchain, members(freezer), work_directory / LOG_NAME)
    return not alive


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it ended meanwhile
