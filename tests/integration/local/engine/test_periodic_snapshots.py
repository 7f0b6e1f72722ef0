"""Jobs of a group with an interval are saved while they run, and continue from there when they are killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cedana_sched.local.views import JobView
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.integration.local.engine.conftest import ONE_GROUP, Engine
from tests.integration.local.engine.processes import kill, supervisor_of
from tests.integration.local.engine.witnesses import Witness

pytestmark = pytest.mark.criu

POLICY = "intervalSeconds = 1, maxFrozenPercent = 50, retention = { keepLast = 2 }"
EVERY_SECOND = f"{ONE_GROUP}checkpointPolicy = {{ {POLICY} }}\n"


@pytest.fixture
async def engine(home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:  # it must be there
    engine = Engine(home, EVERY_SECOND)
    await engine.start()
    yield engine
    await engine.end()


def _generation(job: JobView) -> int:
    """The newest generation that is restorable, 0 if there is none."""
    committed = job.checkpoint is not None and job.checkpoint.phase == "Ready" and job.checkpoint.snapshot
    return int(committed.rpartition("@")[2]) if committed else 0


def _kept(engine: Engine) -> list[SnapshotSummary]:
    """What is in the store."""
    return SnapshotStore.open(StorageConfig.parse(engine.store)).list()


async def _saved(engine: Engine, uid: str, generation: int) -> JobView:
    return await engine.until(uid, lambda job: _generation(job) >= generation)


async def test_a_running_job_is_saved_again_and_again_and_continues_when_all_of_it_is_killed(engine: Engine) -> None:
    witness = await Witness.submit(engine, mib=16)
    await witness.running()
    job = await _saved(engine, witness.uid, 3)
    assert job.phase == "Running"
    assert len(job.runs) == 1
    assert witness.rewinds == 0
    kill(supervisor_of(engine, await engine.job(witness.uid)))
    again = await witness.running(2)
    assert again.runs[1].restored_from is not None
    assert int(again.runs[1].restored_from.rpartition("@")[2]) >= 3
    assert witness.rewinds == 1, "what it did after the snapshot, it does again"
    await _saved(engine, witness.uid, 5)
    await witness.end()
    assert len(_kept(engine)) <= 3, "two of the policy, and the one that it was restored from"


async def test_a_preemption_comes_first_and_loses_nothing(engine: Engine) -> None:
    witness = await Witness.submit(engine, mib=64, memory="1Gi")
    for runs in range(1, 4):
        await witness.running(runs)
        async with engine.client() as client:
            await client.preempt(witness.uid)
        job = await witness.running(runs + 1)
        assert job.runs[-1].restored_from is not None
    assert witness.rewinds == 0
    await witness.end()


async def test_the_next_engine_goes_on_with_the_schedule(engine: Engine) -> None:
    witness = await Witness.submit(engine, mib=16)
    await witness.running()
    await _saved(engine, witness.uid, 1)
    await engine.kill()
    await engine.start()
    await _saved(engine, witness.uid, 3)
    assert witness.rewinds == 0
    await witness.end()


async def test_the_members_of_a_gang_are_saved_together(engine: Engine) -> None:
    stop = engine.home / "stop"
    words = "while [ ! -e $0 ]; do sleep 0.02; done"
    gang = await engine.submit("sh", "-c", words, str(stop), id="gang", replicas=2)
    await _saved(engine, gang.uid, 2)
    stop.touch()
    await engine.until_phase(gang.uid, "Succeeded")
    newest = [max(one.ref.generation for one in _kept(engine) if one.ref.identity.index == index) for index in (0, 1)]
    assert newest[0] == newest[1] >= 2
