"""Pods whose deletion Armada does not explain in time: saved, and back only once it says that it was a preemption."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.model.preemption import Signal
from cedana_sched_armada import preemption_tracker, unexplained_deletions
from cedana_sched_armada.errors import ArmadaUnavailableError
from tests.unit.adapters.armada.armada_builders import JOB_SET, QUEUE, Coordinator, World, rfc3339, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unexplained_deletions, "WORD_SECONDS", 0.05)


def _delete(world: World, job: str) -> None:
    world.change(job, deletion_timestamp=rfc3339(world.now + 60), deletion_grace_period_seconds=60)


async def _saved_unexplained(world: World, coordinator: Coordinator, *jobs: str) -> Signal:
    world.armada.stalled = True
    world.armada.ingesting = False
    for job in jobs:
        _delete(world, job)
    return await coordinator.signal()


async def test_a_job_comes_back_when_its_preemption_is_heard_of_late(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
        assert [victim.workload.name for victim in signal.victims] == [f"armada-{job}-0"]
        world.armada.preempt(job)
        with pytest.raises(ArmadaUnavailableError, match="has not said yet why"):
            await coordinator.release(signal)
        world.armada.ingest()
        await coordinator.release(signal)
        world.armada.go_on()
    assert len(world.armada.successors_of(job)) == 1
    assert [told.reason for told in world.events.told] == ["Resubmitted"]


@pytest.mark.parametrize("whole_set", [False, True])
async def test_a_job_that_was_cancelled_is_called_off_as_soon_as_that_is_heard(
    world: World,
    whole_set: bool,
) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
        if whole_set:
            world.armada.cancel_job_set(QUEUE, JOB_SET)
        else:
            world.armada.cancel(job)
        world.armada.ingest()
        world.armada.go_on()
        assert isinstance(await coordinator.report(), PreemptionCancelled)
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []


@pytest.mark.parametrize("end", ["returned", "succeeded"])
async def test_a_job_that_ended_otherwise_is_left_to_armada(world: World, end: str) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
        (world.armada.return_lease if end == "returned" else world.armada.succeed)(job)
        world.armada.ingest()
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []
    assert world.events.told == [], "nobody has preempted it"


async def test_the_end_of_an_earlier_run_explains_nothing(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
        world.armada.return_lease(job, pod="its-earlier-one")
        world.armada.preempt(job)
        world.armada.ingest()
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_job_that_was_given_back_is_called_off_though_its_pod_is_gone(world: World) -> None:
    job = world.submit()
    pod = world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
        world.delete(job)
        world.armada.return_lease(job, pod=pod)
        world.armada.ingest()
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []


async def test_a_deletion_that_is_explained_is_no_doubt(world: World) -> None:
    preempted, cancelled = world.submit(), world.submit()
    for job in (preempted, cancelled):
        world.start(job)
    async with world.coordinator() as coordinator:
        world.armada.preempt(preempted)
        await coordinator.signal()
        world.armada.cancel(cancelled)
        await until(lambda: world.let_go != [])
        for job in (preempted, cancelled):
            _delete(world, job)
        await asyncio.sleep(3 * unexplained_deletions.WORD_SECONDS)
        reminder = await coordinator.signal()
        assert reminder.uid.startswith(preempted)
        assert coordinator.reports.empty()


async def test_a_gang_is_in_doubt_as_a_whole(world: World) -> None:
    first, second = world.gang(2)
    for job in (first, second):
        world.start(job)
    async with world.coordinator() as coordinator:
        _delete(world, first)
        await asyncio.sleep(3 * unexplained_deletions.WORD_SECONDS)
        assert coordinator.reports.empty(), "Armada ends all of a gang, or none"
        signal = await _saved_unexplained(world, coordinator, second)
        assert len(signal.victims) == 2
        world.armada.preempt(first, second)
        world.armada.ingest()
        await coordinator.release(signal)
    assert [len(world.armada.successors_of(job)) for job in (first, second)] == [1, 1]


async def test_one_for_which_there_was_no_room_is_saved_once_there_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_tracker, "MOST_DOUBTS", 1)
    first, second = world.running(), world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, first)
        _delete(world, second)
        await asyncio.sleep(3 * unexplained_deletions.WORD_SECONDS)
        assert coordinator.reports.empty(), "there was no room"
        world.armada.cancel(first)
        world.armada.ingest()
        world.armada.go_on()
        assert isinstance(await coordinator.report(), PreemptionCancelled)
        await coordinator.release(signal)
        assert (await coordinator.signal()).uid.startswith(second)


async def test_a_doubt_outlives_the_coordinator(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await _saved_unexplained(world, coordinator, job)
    world.delete(job)
    world.armada.preempt(job)
    world.armada.ingest()
    world.armada.go_on()
    async with world.coordinator() as coordinator:
        assert await coordinator.signal() == signal
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
