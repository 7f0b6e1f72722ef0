"""A job that Armada will not have back: what is tried again, for how long, and what is said of it meanwhile."""

from __future__ import annotations

import itertools

import pytest

from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Signal
from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaError
from tests.unit.adapters.armada.armada_builders import QUEUE, Coordinator, World, preempted, rfc3339, until


async def test_a_release_that_was_refused_for_good_is_tried_again_at_once(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.denied.add("submit")
        with pytest.raises(ArmadaDeniedError, match="verb submit on queue bio, or submit_any_jobs"):
            await coordinator.release(signal)
        world.armada.denied.clear()
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
    assert world.slept == []


async def _refused_for(world: World, coordinator: Coordinator, signal: Signal, hours: float) -> list[float]:
    """The coordinator tries again and again; the pauses between two attempts."""
    until_then, tried = world.now + hours * 3600, [world.now]
    while world.now < until_then:
        with pytest.raises(ArmadaError):
            await coordinator.release(signal)
        world.now += 30
        tried.append(world.now)
    return [after - before for before, after in itertools.pairwise(tried)]


async def test_a_job_whose_queue_was_deleted_is_tried_ever_more_slowly_and_given_up_after_a_day(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.queues.discard(QUEUE)
        pauses = await _refused_for(world, coordinator, signal, hours=23.9)
        assert pauses[0] == 30, "the first time at once"
        assert max(pauses) == pauses[-1] == 330
        assert world.events.told == [], "of what is held the coordinator says it"
        world.now += 600
        await coordinator.release(signal)
        assert not coordinator.adapter._ledger.cases
    (told,) = world.events.told
    assert (told.reason, told.warning) == ("NotResubmitted", True)
    assert f"Armada job {job} " in told.message
    assert f"snapshot research/{job}/0/main@1," in told.message
    assert f"{names.ID}: {job} and {names.EXPECT_SNAPSHOT}: 'true'" in told.message
    assert len(told.message) <= 1024, "Kubernetes takes no longer one"


@pytest.mark.parametrize(("hours", "settings"), [(24, {}), (2, {"giveUpSeconds": 7200})], ids=["a day", "as set"])
async def test_a_job_that_armada_does_not_know_any_more_is_given_up(
    world: World, hours: int, settings: dict[str, int]
) -> None:
    world.settings["limits"] = settings
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.forget(job)
        await _refused_for(world, coordinator, signal, hours=hours)
        await coordinator.release(signal)
    assert [one.reason for one in world.events.told] == ["NotResubmitted"]


@pytest.mark.parametrize("why", ["down", "denied"])
async def test_a_job_is_not_given_up_for_an_armada_that_is_away_or_does_not_let_us(world: World, why: str) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.down, world.armada.denied = why == "down", {"submit"} if why == "denied" else set()
        for _ in range(3):
            world.now += 86_400
            with pytest.raises(ArmadaError):
                await coordinator.release(signal)
        world.armada.down, world.armada.denied = False, set()
        world.armada.queues.discard(QUEUE)  # it has just come back, and does not know its queues yet
        with pytest.raises(ArmadaError):
            await coordinator.release(signal)
        world.armada.queues.add(QUEUE)
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_what_was_not_saved_and_cannot_come_back_yet_is_said_on_its_pod_every_some_minutes(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        world.change(job, deletion_timestamp=rfc3339(world.now + 60), phase="Failed")
        world.armada.faults["details"] = ["before"] * 3
        world.armada.preempt(job)
        await until(lambda: len(world.events.told) == 2)
        assert coordinator.reports.empty()
    assert [one.reason for one in world.events.told] == ["ResubmissionFailed", "Resubmitted"]
    assert "details of jobs: UNAVAILABLE" in world.events.told[0].message


async def test_a_queue_that_armadas_server_does_not_know_yet_is_waited_for(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.faults["submit"] = []
        world.armada.queues.discard(QUEUE)
        with pytest.raises(ArmadaError):
            await coordinator.release(signal)
        world.armada.queues.add(QUEUE)
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
