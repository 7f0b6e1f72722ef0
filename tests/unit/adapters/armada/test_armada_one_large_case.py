"""A gang of a tenant's, swollen by pods of his that name it, leaves no room in the notes for what others have open."""

from __future__ import annotations

import uuid

import pytest

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.objects import names
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from tests.unit.adapters.armada.armada_builders import World, item, preempted, until
from tests.unit.adapters.armada.tenants_pods import his, text


def naming_gang(world: World, policy: str) -> Pod:
    """A pod that never runs."""
    size = 20 if policy else 63
    annotations = {GANG: "g", CARDINALITY: "2", names.POLICY: policy}
    name, job, run, id_ = text(20 if policy else 200).lower(), text(size), text(size), text(size)
    uid = str(uuid.uuid4())
    return his(world, name, uid, job, run=run, queue="ml", id=id_, annotations=annotations, phase="Pending")


@pytest.mark.parametrize(("forged", "policy"), [(0, ""), (2_000, ""), (2_200, "a" * 31_000)])
async def test_preemption_of_another_queue_outlives_the_coordinator(world: World, forged: int, policy: str) -> None:
    job = world.running()
    asked = [item(annotations={GANG: "g", CARDINALITY: "2"}) for _ in range(2)]
    for one in asked:
        one.namespace = "tenant-b"
    members = world.armada.submit("ml", "his", *asked)
    for member in members:
        world.start(member)
    for _ in range(forged):
        world.pods._put(naming_gang(world, policy))
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        await preempted(world, coordinator, members[0])
        signal = await preempted(world, coordinator, job)
        await coordinator.adapter._ledger.wait_until_persisted()
    world.snapshots.add(job)  # it is saved, and its pod goes
    world.delete(job)
    async with world.coordinator() as coordinator:  # the next one
        await until(coordinator.adapter._ready.is_set)
        await coordinator.release(signal)
        await until(lambda: bool(world.armada.successors_of(job)))
