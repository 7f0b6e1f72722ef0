"""Pods and notes that are behind Armada's word: a preemption is none the less one."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.adapter.contract import Preempted
from cedana_sched.model.errors import RetryableError
from cedana_sched_armada.events import JobSet, event_position_key
from tests.unit.adapters.armada.armada_builders import (
    JOB_SET,
    QUEUE,
    Coordinator,
    World,
    preempted,
    rfc3339,
    until,
)


async def test_a_pod_that_shows_after_the_word_of_its_preemption_is_saved_and_comes_back(world: World) -> None:
    """Its job set was followed already, for another job's pod; the watch of pods is behind."""
    other, job = world.running(), world.submit()
    async with world.coordinator() as coordinator:
        world.start(job, protected=False)  # it is, and does not show yet
        world.armada.preempt(job)
        await preempted(world, coordinator, other)  # whatever came before was heard
        world.show(job, deletion_timestamp=rfc3339(world.now + 60), deletion_grace_period_seconds=60)
        signal = await coordinator.signal()
        assert (signal.uid.partition("@")[0], signal.reason) == (job, "Preempted")
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_notes_that_cannot_be_written_let_nobody_go_and_take_nothing_back(world: World) -> None:
    job = world.running()
    write, refusals = world.notes.write, 3

    async def refuse(notes: bytes) -> None:
        nonlocal refusals
        if refusals > 0:
            refusals -= 1
            raise RetryableError("failed calling webhook", remedy="it is tried again")
        await write(notes)

    async with world.coordinator() as coordinator:
        world.notes.write = refuse  # type: ignore[method-assign]  # the API server
        world.armada.preempt(job)
        await asyncio.sleep(0)
        report = await coordinator.report()
        assert isinstance(report, Preempted)
        assert refusals == 0
        assert coordinator.reports.empty()
        assert not coordinator.adapter._preemptions._pods.is_released(world.pod_of(job).metadata.uid)


@pytest.mark.parametrize("whole_set", [False, True])
async def test_a_pod_that_shows_after_its_job_was_cancelled_as_well_is_not_taken_up(
    world: World, whole_set: bool
) -> None:
    world.running()
    job = world.submit()
    async with world.coordinator() as coordinator:
        world.start(job, protected=False)
        world.armada.preempt(job)
        if whole_set:
            world.armada.cancel_job_set(QUEUE, JOB_SET)
        else:
            world.armada.ask_to_cancel(job)
        await until(lambda: _has_heard_all(coordinator, world))
        world.show(job)
        await asyncio.sleep(0.01)
        assert coordinator.reports.empty()


def _has_heard_all(coordinator: Coordinator, world: World) -> bool:
    heard = coordinator.adapter._ledger.streams.get(JobSet(QUEUE, JOB_SET), "")
    return event_position_key(heard)[:2] == event_position_key(world.armada.last_id(QUEUE, JOB_SET))[:2]
