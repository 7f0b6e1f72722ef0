"""SIGKILL of what works for the engine: CRIU, the capture that uploads, a job's supervisor, the job itself."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from cedana_sched.local.views import JobView, RunView
from cedana_sched.model.errors import RefusedError
from tests import processes
from tests.integration.local.engine.conftest import Engine
from tests.integration.local.engine.processes import capture_of, criu_of, first_process_of, kill, supervisor_of
from tests.integration.local.engine.witnesses import Witness

pytestmark = pytest.mark.criu


async def big(engine: Engine) -> Witness:
    """A witness that runs, and is dumped in some tenths of a second."""
    witness = await Witness.submit(engine, mib=192, memory="1Gi")
    await witness.running()
    return witness


async def preempted(witness: Witness) -> None:
    async with witness.engine.client() as client:
        await client.preempt(witness.uid)


async def test_a_killed_criu_costs_an_attempt_and_no_more_than_what_it_takes_along(engine: Engine) -> None:
    witness = await big(engine)
    async with engine.client() as client:
        await client.checkpoint(witness.uid, leave_running=True)
    await witness.counts_on(len(witness.beats) + 1)  # on past its snapshot
    await preempted(witness)
    assert processes.kill(await criu_of(engine, "dump"))
    job = await witness.running(2)
    lost = len(_taken_along(job))
    assert job.runs[1].restored_from == f"default/witness/0/main@{1 if lost else 2}"
    assert job.checkpoint is not None
    assert witness.rewinds == lost
    await witness.end()


async def test_a_killed_capture_costs_an_attempt_and_nothing_else(engine: Engine) -> None:
    witness = await big(engine)
    await preempted(witness)
    await engine.until(witness.uid, lambda job: job.checkpoint is not None and job.checkpoint.read_bytes > 0)
    kill(capture_of(engine))
    job = await witness.running(2)
    assert job.runs[1].restored_from == "default/witness/0/main@1"
    assert witness.rewinds == 0
    await witness.end()


@pytest.mark.parametrize("part", ["criu", "supervisor"])
async def test_a_restore_whose_part_is_killed_is_tried_again(engine: Engine, part: str) -> None:
    witness = await big(engine)
    await preempted(witness)
    criu = await criu_of(engine, "restore")
    kill(criu.pid if part == "criu" else criu.ppid())
    job = await witness.running(2)
    assert job.runs[1].restored_from == "default/witness/0/main@1", job
    assert witness.rewinds == 0
    await witness.end()


async def test_a_job_whose_supervisor_is_killed_continues_from_its_last_snapshot(engine: Engine) -> None:
    witness = await Witness.submit(engine)
    job = await witness.running()
    async with engine.client() as client:
        await client.checkpoint(witness.uid, leave_running=True)
    counted = len(witness.beats) + 1
    await witness.counts_on(counted)  # on past its snapshot
    kill(supervisor_of(engine, job))
    back = await witness.running(2)
    assert back.runs[1].restored_from == "default/witness/0/main@1"
    assert witness.rewinds == 1
    assert len(witness.beats) >= counted
    await witness.end()


async def test_a_supervisor_and_the_engine_killed_together(engine: Engine) -> None:
    witness = await Witness.submit(engine)
    job = await witness.running()
    async with engine.client() as client:
        await client.checkpoint(witness.uid, leave_running=True)
    await engine.kill()
    kill(supervisor_of(engine, job))
    await engine.start()
    back = await witness.running(2)
    assert back.runs[1].restored_from == "default/witness/0/main@1"
    assert witness.rewinds <= 1
    await witness.end()


async def test_a_job_that_crashed_is_restored_on_request_with_its_output_rewound(engine: Engine) -> None:
    witness = await Witness.submit(engine)
    job = await witness.running()
    async with engine.client() as client:
        await client.checkpoint(witness.uid, leave_running=True)
        await witness.counts_on(len(witness.beats) + 2)  # there is something to rewind
        kill(first_process_of(engine, job))
        failed = await engine.until_phase(witness.uid, "Failed")
        assert failed.signal == "SIGKILL"
        await client.restore(witness.uid)
    back = await witness.running(2)
    assert back.runs[1].restored_from == "default/witness/0/main@1"
    await witness.end()
    assert witness.rewinds == 1


@pytest.mark.parametrize("seed", [1])
async def test_a_job_outlives_a_series_of_random_kills(engine: Engine, seed: int) -> None:
    """Engine, CRIU and capture die at random moments of one preemption after the other."""
    chance = random.Random(seed)
    witness = await Witness.submit(engine, mib=64)
    await witness.running()
    for _ in range(5):
        await _preempt_whatever_happens(witness)
        await asyncio.sleep(chance.uniform(0.0, 0.8))  # the moment is the point
        victim = chance.choice(["engine", "criu", "capture"])
        if victim == "engine":
            await engine.kill()
            await engine.start()
        else:
            _kill_any(engine, "criu" if victim == "criu" else "cedana_sched.agent.capture")
        await engine.until_phase(witness.uid, "Running", "Failed")
    job = await engine.job(witness.uid)
    runs = job.runs
    assert witness.rewinds <= len(_taken_along(job))
    await witness.end(cold_starts=sum(run.started_at is not None and run.restored_from is None for run in runs[1:]))


def _taken_along(job: JobView) -> list[RunView]:
    """Runs that a killed CRIU has ended: it leaves its own code, or breakpoints, in a program (see `aftermath`)."""
    return [run for run in job.runs if run.signal in {"SIGTRAP", "SIGSEGV"}]


async def _preempt_whatever_happens(witness: Witness) -> None:
    with contextlib.suppress(RefusedError):  # it is on its way already
        await preempted(witness)


def _kill_any(engine: Engine, word: str) -> None:
    for process in processes.below(engine.pid):
        if any(part.endswith(word) for part in processes.words_of(process)):
            processes.kill(process)
