"""What somebody cancels while it is held stays away, and takes nobody else along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cedana_sched.model.errors import RetryableError
from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.events import JobSet
from tests.unit.adapters.armada.armada_builders import JOB_SET, QUEUE, World, preempted, until
from tests.unit.adapters.armada.fake_armada import FakeArmada


async def test_a_job_that_is_cancelled_while_held_stays_away(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.cut_streams()
        world.armada.cancel(job)
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []
    assert "the job was cancelled" in world.events.told[0].message


async def test_a_job_that_is_cancelled_after_an_attempt_that_nobody_answered_stays_away(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.faults["submit"] = ["published"]
        world.armada.ingesting = False
        with pytest.raises(RetryableError):
            await coordinator.release(signal)
        world.armada.cancel(job)
        world.armada.ingest()
    async with world.coordinator() as coordinator:
        await coordinator.release(signal)
        assert not coordinator.adapter._ledger.awaited
    assert len(world.armada.jobs) == 2, "it was submitted"
    assert world.armada.successors_of(job) == []
    assert [told.reason for told in world.events.told] == ["NotResubmitted"]


async def test_a_job_that_is_cancelled_while_it_is_submitted_stays_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.running()
    submit = ArmadaClient.submit
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        ledger = coordinator.adapter._ledger

        async def slowly(server: ArmadaClient, job_set: JobSet, items: Any) -> tuple[str, ...]:
            made = await submit(server, job_set, items)
            world.armada.cancel(job)
            await until(lambda: ledger.cases[signal.uid].cancelled != "")
            return made

        monkeypatch.setattr(ArmadaClient, "submit", slowly)
        await coordinator.release(signal)
        assert not ledger.awaited
    assert len(world.armada.jobs) == 2, "it was submitted"
    assert world.armada.successors_of(job) == []
    assert world.slept == [], "who it was is known"


async def test_a_job_set_that_is_cancelled_while_held_stays_away(world: World) -> None:
    job, _other = world.running(), world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.cancel_job_set(QUEUE, JOB_SET)
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []
    assert "the job set was cancelled" in world.events.told[0].message


@pytest.mark.parametrize(
    "cancel",
    [FakeArmada.cancel, FakeArmada.carry_out_cancellation],
    ids=["by its id", "by an admin with its executor"],
)
async def test_another_job_that_is_cancelled_takes_nobody_along(
    world: World, cancel: Callable[[FakeArmada, str], None]
) -> None:
    job, other = world.running(), world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        cancel(world.armada, other)
        await until(lambda: bool(world.let_go))
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_cancellation_by_id_is_none_of_the_job_set_after_a_restart(world: World) -> None:
    """The coordinator dies after it was asked for, and before the scheduler has carried it out."""
    job, other = world.running(), world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.ask_to_cancel(other)
        await until(lambda: bool(world.let_go))
        await coordinator.adapter._ledger.wait_until_persisted()
    world.armada.carry_out_cancellation(other)
    async with world.coordinator() as coordinator:
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
