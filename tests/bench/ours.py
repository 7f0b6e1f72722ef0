"""The same memory as a job of a real engine: two generations, a return, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import msgspec
import psutil

from cedana_sched.local.views import CheckpointView, JobView
from tests.bench.costs import Costs, measure
from tests.bench.hog import PERCENT_REWRITTEN, HogLog
from tests.integration.local.engine.conftest import Engine
from tests.processes import all_processes, words_of
from workloads.memory.workload import hog_command

_PATIENCE_SECONDS = 300.0


class Generation(msgspec.Struct, frozen=True):
    """One checkpoint, from the notice to the commit."""

    committed_seconds: float
    frozen_seconds: float
    """How long the program itself saw no time pass; 0 when it was killed."""
    read_bytes: int
    stored_bytes: int
    cpu_seconds: float
    peak_bytes: int


class Ours(msgspec.Struct, frozen=True):
    """Everything that is measured of the engine."""

    first: Generation
    second: Generation
    restore_seconds: float
    """From the moment the job got its place to its first tick."""


async def ours(home: Path, mebibytes: int, store: str, options: tuple[str, ...]) -> Ours:
    """Run the engine on `home` with `store` and its options, and measure; keys are in the environment."""
    engine = Engine(home, store=store, options=options)
    await engine.start()
    try:
        return await _measure(engine, home, mebibytes)
    finally:
        await engine.end_all()
        await engine.stop()


async def _measure(engine: Engine, home: Path, mebibytes: int) -> Ours:
    directory = home / "hog"
    directory.mkdir()
    command = hog_command(directory, mebibytes, percent=PERCENT_REWRITTEN)
    job = await engine.submit(*command.argv, id="hog", cwd=str(directory), memory=f"{mebibytes + 256}Mi")
    log = HogLog(directory)
    await asyncio.to_thread(log.await_word, "filled")
    first = await _leave_running(engine, job, log)
    _signal(engine, command.argv[0], signal.SIGUSR1)
    await asyncio.to_thread(log.await_word, "rewrote")
    with measure(engine.pid, command.argv[0]) as costs:
        async with engine.client() as client:
            await client.preempt(job.uid)
        back = await engine.until(job.uid, lambda j: len(j.runs) == 2 and j.phase == "Running", _PATIENCE_SECONDS)
    assert back.checkpoint is not None
    assert back.restore is not None
    second = _generation(back.checkpoint, 0.0, costs)
    returned = await asyncio.to_thread(log.first_tick_after, back.restore.created_at)
    return Ours(first, second, returned - back.restore.created_at)


async def _leave_running(engine: Engine, job: JobView, log: HogLog) -> Generation:
    began = time.time()
    with measure(engine.pid, "hog") as costs:
        async with engine.client() as client:
            view = await client.checkpoint(job.uid, leave_running=True)
    assert view.checkpoint is not None
    await asyncio.to_thread(log.first_tick_after, time.time())
    return _generation(view.checkpoint, log.longest_pause(began), costs)


def _generation(checkpoint: CheckpointView, frozen_seconds: float, costs: Costs) -> Generation:
    assert checkpoint.committed_at is not None, checkpoint.failure
    return Generation(
        checkpoint.committed_at - checkpoint.created_at,
        frozen_seconds,
        checkpoint.read_bytes,
        checkpoint.stored_bytes,
        costs.cpu_seconds,
        costs.peak_bytes,
    )


def _signal(engine: Engine, program: str, number: signal.Signals) -> None:
    """To the hog itself: its tini, and the hogs of others, are left alone."""
    for process in all_processes():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if words_of(process)[:1] == [program] and process.cwd() == str(engine.home / "hog"):
                process.send_signal(number)
