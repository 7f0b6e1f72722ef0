"""Finds the processes behind a job, to kill them."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil

from cedana_sched.local.runs.run_directory import RunDirectory
from cedana_sched.local.views import JobView
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine
from tests.processes import all_processes, words_of


def supervisor_of(engine: Engine, job: JobView) -> int:
    return _state(engine, job)[0]


def first_process_of(engine: Engine, job: JobView) -> int:
    """PID 1 of the job's own namespace, as the machine numbers it."""
    return _state(engine, job)[1]


def _state(engine: Engine, job: JobView) -> tuple[int, int]:
    state = RunDirectory(engine.state / "runs" / job.runs[-1].uid).read_state()
    assert state is not None
    assert state.init is not None
    return state.shim.pid, state.init.pid


def capture_of(engine: Engine) -> int:
    """The capture process that works: the one that has taken its lock."""
    locks = [lock.read_text() for lock in (engine.state / "captures").glob("*/lock")]
    (pid,) = (text for text in locks if text)
    return int(pid.splitlines()[0])


async def criu_of(engine: Engine, command: str) -> psutil.Process:
    """CRIU, as soon as it works for this engine; `command` is dump or restore."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            for process in all_processes():
                words = words_of(process)
                works_here = any(word.startswith(str(engine.state)) for word in words)
                if works_here and command in words and any(word.endswith("/criu") for word in words):
                    return process
            await asyncio.sleep(0.002)  # it lives for some 50 ms, and nothing announces it


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
