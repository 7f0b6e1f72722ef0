"""A tenant who may submit to a queue of his own names, as client id there, that of another queue's job that returns."""

from __future__ import annotations

import asyncio

import pytest
from armada_client.armada.submit_pb2 import JobSubmitRequestItem

from cedana_sched_armada import unexplained_deletions
from cedana_sched_armada.successor import client_id
from tests.unit.adapters.armada.armada_builders import NAMESPACE, World, item, preempted, until
from tests.unit.adapters.armada.tenants_pods import forged


def claiming(job: str, namespace: str) -> JobSubmitRequestItem:
    one = item()
    one.client_id, one.namespace = client_id(job), namespace
    return one


async def his_stream(world: World) -> None:
    """He runs a job in his own queue and namespace, so that its job set is followed."""
    mine = item()
    mine.namespace = "tenant-b"
    (own,) = world.armada.submit("ml", "his", mine)
    world.start(own)


@pytest.mark.parametrize("namespace", ["tenant-b", NAMESPACE])
async def test_victims_successor_is_not_cancelled_for_a_job_of_another_queue(world: World, namespace: str) -> None:
    job = world.running()
    await his_stream(world)
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        (his,) = world.armada.submit("ml", "his", claiming(job, namespace))
        await until(lambda: bool(coordinator.adapter._preemptions._successors))
        await coordinator.release(await preempted(world, coordinator, job))
        await until(lambda: any(one != his for one in world.armada.successors_of(job)))
        await asyncio.sleep(0.5)  # in which it would be cancelled
    assert [one for one in world.armada.successors_of(job) if one != his], "the victim's successor was cancelled"


async def test_job_of_another_queue_submitted_while_it_is_saved_is_not_taken_for_its_return(world: World) -> None:
    job = world.running()
    await his_stream(world)
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        signal = await preempted(world, coordinator, job)
        (his,) = world.armada.submit("ml", "his", claiming(job, NAMESPACE))
        await asyncio.sleep(0.3)  # in which it would be taken for the return
        await coordinator.release(signal)
        await until(lambda: any(one != his for one in world.armada.successors_of(job)))


@pytest.mark.parametrize("is_forged", [False, True])
async def test_doubt_about_a_forged_pod_absorbs_no_preemption_of_a_successor_without_pod(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_forged: bool
) -> None:
    monkeypatch.setattr(unexplained_deletions, "WORD_SECONDS", 0.05)
    job = world.running()
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
        (successor,) = world.armada.successors_of(job)
        world.snapshots.add(job)
        if is_forged:
            world.pods._put(forged(world, successor))
            world.pods._put(forged(world, successor, deleted=True))
            await coordinator.signal()
        world.armada.lease(successor)
        world.armada.preempt(successor)
        await until(lambda: bool(world.armada.successors_of(successor)))
