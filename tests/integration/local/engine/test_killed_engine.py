"""SIGKILL of the engine at each step of a preemption and of the way back: nothing is lost, repeated or done twice."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cedana_sched.model.errors import CedanaSchedError
from tests.integration.local.engine.conftest import Engine
from tests.integration.local.engine.witnesses import Witness

pytestmark = pytest.mark.criu

GOING = [
    "unsaved Job Preempting",
    "saved Job Preempting",
    "unsaved Checkpoint Dumping",
    "saved Checkpoint Dumping",
    "during Dump",
    "unsaved Checkpoint Killing",
    "saved Checkpoint Killing",
    "unsaved Checkpoint Ready",
    "saved Checkpoint Ready",
]
COMING_BACK = [
    "saved Job Starting",
    "saved Restore Staging",
    "unsaved Restore Restoring",
    "saved Restore Restoring",
    "unsaved Restore Running",
    "unsaved Job Running",
    "saved Job Running",
]


@pytest.mark.parametrize("instants", [GOING, COMING_BACK], ids=["going", "coming back"])
async def test_a_preempted_job_outlives_the_engine_at_every_step(engine: Engine, instants: list[str]) -> None:
    await engine.make_mortal()
    witness = await Witness.submit(engine, mib=16)
    await witness.running()
    for number, instant in enumerate(instants, start=2):
        engine.die_at(instant)
        async with engine.client() as client:
            with contextlib.suppress(CedanaSchedError):  # it may die before it answers
                await client.preempt(witness.uid)
        await engine.died()
        await engine.start()
        async with engine.client() as client:
            job = await client.job(witness.uid)
            if job.phase == "Running" and len(job.runs) < number:  # it died before it had taken that in
                await client.preempt(witness.uid)
        job = await witness.running(number)
        assert job.runs[-1].restored_from is not None, f"{instant}: {job}"
        assert witness.rewinds == 0, instant
    done = await witness.end()
    assert len(done.runs) == len(instants) + 1


async def test_a_gang_outlives_an_engine_that_dies_while_it_is_dumped(engine: Engine) -> None:
    """Its members stand still together: what one capture has let run on is frozen anew with the others."""
    stop = engine.home / "stop"
    words = "i=0; while [ ! -e $0 ]; do echo $i; i=$((i+1)); sleep 0.02; done"
    await engine.make_mortal()
    gang = await engine.submit("sh", "-c", words, str(stop), id="gang", replicas=2)
    await engine.until_phase(gang.uid, "Running")
    engine.die_at("during Dump")
    async with engine.client() as client:
        await client.preempt(gang.uid)
    await engine.died()
    await engine.start()
    back = await engine.until(gang.uid, lambda job: job.phase == "Running" and len(job.runs) == 4)
    assert all(run.restored_from is not None for run in back.runs[2:])
    stop.touch()
    done = await engine.until_phase(gang.uid, "Succeeded", "Failed")
    for index in (0, 1):
        numbers = Path(f"{done.stdout}.{index}").read_text().split()
        assert numbers == [str(number) for number in range(len(numbers))]
