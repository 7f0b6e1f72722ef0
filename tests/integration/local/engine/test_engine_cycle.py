"""The main job, small: a preempted job continues where it stopped."""

from __future__ import annotations

import sys

import pytest

from tests.integration.local.engine.conftest import Engine, printed

pytestmark = pytest.mark.criu

COUNTER = "import time\nfor number in range(60): print(number, flush=True); time.sleep(0.05)"


async def test_a_preempted_job_continues_without_gap_or_repetition(engine: Engine) -> None:
    job = await engine.submit(sys.executable, "-c", COUNTER, id="counter")
    await engine.until_phase(job.uid, "Running")
    async with engine.client() as client:
        await client.preempt(job.uid)
    back = await engine.until(job.uid, lambda j: j.phase == "Running" and len(j.runs) == 2)
    done = await engine.until_phase(job.uid, "Succeeded", "Failed")
    assert printed(job) == [str(number) for number in range(60)]
    assert (done.phase, done.preemptions, back.runs[1].restored_from) == ("Succeeded", 1, "default/counter/0/main@1")
