"""SIGKILL of the engine at each step of a preemption and of the way back: nothing is lost, repeated or done twice."""

from __future__ import annotations

import contextlib

import pytest

from cedana_sched.model.errors import CedanaSchedError
from tests.integration.engine.conftest import Engine
from tests.integration.engine.witnesses import Witness

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
        if instant == "unsaved Job Preempting":
            async with engine.client() as client:
                await client.preempt(witness.uid)
        job = await witness.running(number)
        assert job.runs[-1].restored_from is not None, f"{instant}: {job}"
        assert witness.rewinds == 0, instant
    done = await witness.end()
    assert len(done.runs) == len(instants) + 1
