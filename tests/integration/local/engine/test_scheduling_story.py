"""Groups, gangs and priorities with real processes: who has to go, goes frozen and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.snapshot.criu_toolchain import Toolchain
from tests.integration.local.engine.conftest import Engine, printed
from tests.integration.local.engine.witnesses import Witness

pytestmark = pytest.mark.criu

COHORT = """
[capacity]
cpu = 2
memory = "4Gi"

[fairSharing]

[[groups]]
name = "bio"
nominalQuota = { cpu = 1, memory = "2Gi" }
preemption = { reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority" }

[[groups]]
name = "ml"
nominalQuota = { cpu = 1, memory = "2Gi" }
preemption = { reclaimWithinCohort = "Any" }
"""


@pytest.fixture
async def cohort(home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:
    engine = Engine(home, COHORT)
    await engine.start()
    yield engine
    await engine.end()


async def test_a_group_takes_back_its_quota_and_the_borrower_continues_later(cohort: Engine) -> None:
    first = await Witness.submit(cohort, id="first")
    await first.running()
    borrower = await Witness.submit(cohort, id="borrower")
    await borrower.running()
    ml = await cohort.submit("sleep", "1", group="ml", name="training")
    preempting = await cohort.until_phase(borrower.uid, "Preempting", "Queued")
    assert "training" in preempting.why
    training = await cohort.until_phase(ml.uid, "Running")
    waiting = await cohort.job(borrower.uid)
    assert waiting.phase == "Queued"
    assert waiting.checkpoint is not None
    assert waiting.checkpoint.preemptor == "training"
    assert (waiting.checkpoint.committed_at or 0.0) < (training.started_at or 0.0)
    back = await borrower.running(2)
    assert back.runs[1].restored_from == "default/borrower/0/main@1"
    assert (await cohort.job(first.uid)).preemptions == 0
    assert (first.rewinds, borrower.rewinds) == (0, 0)
    await borrower.end()
    await first.end()


async def test_a_gang_goes_and_returns_together_each_replica_as_itself(cohort: Engine) -> None:
    words = 'i=0; echo "$0 $$ begins"; while [ ! -e "$0" ]; do echo $i; i=$((i+1)); sleep 0.02; done; echo done'
    stop = cohort.home / "stop"
    gang = await cohort.submit("sh", "-c", words, str(stop), id="gang", replicas=2)
    await cohort.until_phase(gang.uid, "Running")
    high = await cohort.submit("sleep", "1", priority=10, name="urgent")
    await cohort.until_phase(high.uid, "Running")
    back = await cohort.until(gang.uid, lambda job: job.phase == "Running" and len(job.runs) == 4)
    assert [(run.index, run.restored_from) for run in back.runs[2:]] == [
        (0, "default/gang/0/main@1"),
        (1, "default/gang/1/main@1"),
    ]
    stop.touch()
    done = await cohort.until_phase(gang.uid, "Succeeded", "Failed")
    for index in (0, 1):
        head, *numbers, last = Path(f"{done.stdout}.{index}").read_text().splitlines()
        assert (head.endswith("begins"), last) == (True, "done")
        assert [int(number) for number in numbers] == list(range(len(numbers)))


async def test_a_preemption_that_is_not_needed_any_more_leaves_the_job_alone(cohort: Engine) -> None:
    witness = await Witness.submit(cohort, mib=256, cpus="2", memory="1Gi")
    await witness.running()
    urgent = await cohort.submit("sleep", "100", priority=10, name="urgent")
    await cohort.until(witness.uid, lambda job: job.checkpoint is not None and job.checkpoint.step == "Dumping")
    async with cohort.client() as client:
        await client.cancel(urgent.uid)
    kept = await cohort.until_phase(witness.uid, "Running")
    assert len(kept.runs) == 1
    await witness.counts_on(len(witness.beats) + 5)
    assert witness.rewinds == 0
    await witness.end()


async def test_one_preemption_after_the_other_stores_only_what_changed(cohort: Engine) -> None:
    witness = await Witness.submit(cohort, mib=64)
    await witness.running()
    stored = []
    for generation in range(1, 5):
        async with cohort.client() as client:
            await client.preempt(witness.uid)
        job = await witness.running(generation + 1)
        assert job.runs[-1].restored_from == f"default/witness/0/main@{generation}"
        assert job.checkpoint is not None
        stored.append(job.checkpoint.stored_bytes)
    assert stored[0] > 64 << 20
    assert max(stored[1:]) < stored[0] / 10
    assert witness.rewinds == 0
    assert (await witness.end()).preemptions == 4


async def test_a_crowd_of_jobs_outlives_the_engine(cohort: Engine) -> None:
    """Running, ended meanwhile, waiting, cancelled: after a death each is what it should be."""
    stop = cohort.home / "stop"
    small: dict[str, Any] = {"cpus": "0.1", "memory": "64Mi"}
    ends = [
        await cohort.submit("sh", "-c", f"until [ -e {stop} ]; do sleep 0.02; done; echo $$", **small) for _ in range(5)
    ]
    stays = [await Witness.submit(cohort, id=f"stays-{number}", **small) for number in range(5)]
    for witness in stays:
        await witness.running()
    for job in ends:
        await cohort.until_phase(job.uid, "Running")
    waits = await cohort.submit("true", cpus="2")
    await cohort.kill()
    stop.touch()
    await asyncio.gather(*(witness.counts_on(len(witness.beats) + 5) for witness in stays))
    await cohort.start()
    for job in ends:
        done = await cohort.until_phase(job.uid, "Succeeded", "Failed")
        assert (done.phase, len(printed(done)), len(done.runs)) == ("Succeeded", 1, 1)
    assert (await cohort.job(waits.uid)).phase == "Queued"
    for witness in stays:
        done = await witness.end()
        assert (len(done.runs), witness.rewinds) == (1, 0)
    await cohort.until_phase(waits.uid, "Succeeded")
