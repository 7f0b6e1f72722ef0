"""Supervisors are killed at moments of a start and of a restore: nothing stays, and the next try works."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs.run_directory import RunDirectory
from cedana_sched.model.errors import RestoreError

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

LOOP = """
import time
while True:
    print("tick")
    time.sleep(0.01)
"""
MILLISECONDS = (0, 5, 15, 30, 50, 80)


@pytest.mark.parametrize("delay", MILLISECONDS)
async def test_supervisor_killed_while_it_starts_a_job(lab: Lab, delay: int) -> None:
    workload = lab.python("first", LOOP)
    start = asyncio.create_task(lab.runtime.start_cold(workload, None))
    await kill_supervisor(lab, "first", delay)
    await start
    assert (await lab.end_of("first")).lost
    lines = len(lab.lines("first"))
    await asyncio.sleep(0.05)
    assert len(lab.lines("first")) == lines
    second = lab.again("second", workload)
    await lab.runtime.start_cold(second, None)
    await lab.printed("second", lines + 3)


@pytest.mark.criu
@pytest.mark.parametrize("delay", MILLISECONDS)
async def test_supervisor_killed_while_it_restores_a_job(lab: Lab, delay: int) -> None:
    workload = lab.python("first", LOOP)
    await lab.runtime.start_cold(workload, None)
    await lab.printed("first", 3)
    images, facts = await lab.dump(workload)
    await lab.runtime.kill("first")
    second = lab.again("second", workload)
    restore = asyncio.create_task(lab.runtime.restore_from_images(second, images, facts))
    await kill_supervisor(lab, "second", delay)
    (failure,) = await asyncio.gather(restore, return_exceptions=True)
    if failure is None:  # it ran already
        assert (await lab.end_of("second")).lost
    else:
        assert isinstance(failure, RestoreError)
        assert "supervisor was killed" in failure.message
    third = lab.again("third", workload)
    await lab.runtime.restore_from_images(third, images, facts)
    await lab.printed("third", len(lab.lines("third")) + 3)


@pytest.mark.criu
@pytest.mark.parametrize("delay", [0, 20, 60])
async def test_run_killed_while_it_is_restored(lab: Lab, delay: int) -> None:
    workload = lab.python("first", LOOP)
    await lab.runtime.start_cold(workload, None)
    await lab.printed("first", 3)
    images, facts = await lab.dump(workload)
    await lab.runtime.kill("first")
    second = lab.again("second", workload)
    restore = asyncio.create_task(lab.runtime.restore_from_images(second, images, facts))
    await supervisor_of(lab, "second")
    await asyncio.sleep(delay / 1000)
    await lab.runtime.kill("second")
    await asyncio.gather(restore, return_exceptions=True)
    assert await lab.runtime.find_running(second) is None


async def test_run_killed_while_it_is_begun(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor runs, and the engine has not heard so yet."""
    begun, is_killed = asyncio.Event(), asyncio.Event()
    start = lab.runtime._supervisors.start

    async def start_slowly(path: Path) -> int:
        pidfd = await start(path)
        begun.set()
        await is_killed.wait()
        return pidfd

    monkeypatch.setattr(lab.runtime._supervisors, "start", start_slowly)
    workload = lab.python("first", LOOP)
    starting = asyncio.create_task(lab.runtime.start_cold(workload, None))
    await begun.wait()
    killing = asyncio.create_task(lab.runtime.kill("first"))
    await asyncio.wait({killing}, timeout=0.1)
    is_killed.set()
    await asyncio.gather(killing, starting)
    assert await lab.runtime.find_running(workload) is None


async def kill_supervisor(lab: Lab, uid: str, delay_milliseconds: int) -> None:
    """Kill it that long after it first wrote its state."""
    directory = await supervisor_of(lab, uid)
    await asyncio.sleep(delay_milliseconds / 1000)
    state = directory.read_state()
    assert state is not None
    state.shim.send(signal.SIGKILL)


async def supervisor_of(lab: Lab, uid: str) -> RunDirectory:
    directory = RunDirectory(lab.state / "runs" / uid)
    async with asyncio.timeout(60):
        while directory.read_state() is None:  # noqa: ASYNC110  # the runtime itself watches this file
            await asyncio.sleep(0.001)
    return directory
