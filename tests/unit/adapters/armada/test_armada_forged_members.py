"""A pod of another namespace that names somebody's job, or gang, is no part of it: neither saved nor brought back."""

from __future__ import annotations

import asyncio

import pytest
from armada_client.armada.submit_pb2 import JobSubmitRequestItem

from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched_armada import unexplained_deletions
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from tests.unit.adapters.armada.armada_builders import (
    NAMESPACE,
    QUEUE,
    World,
    item,
    preempted,
    release_of,
    until,
)
from tests.unit.adapters.armada.tenants_pods import forged


async def test_pod_that_names_a_gang_is_not_saved_with_it(world: World) -> None:
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
    world.pods._put(forged(world, "01forged", annotations={GANG: "gang-1", CARDINALITY: "2"}))
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        signal = await coordinator.signal()
        assert {victim.workload.namespace for victim in signal.victims} == {NAMESPACE}
        await coordinator.release(signal)
    assert [len(world.armada.successors_of(job)) for job in jobs] == [1, 1]


async def test_pod_that_names_a_job_is_not_saved_for_it(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        world.pods._put(forged(world, job))
        signal = await preempted(world, coordinator, job)
        assert [victim.workload.namespace for victim in signal.victims] == [NAMESPACE]
        await coordinator.release(signal)
    (successor,) = world.armada.successors_of(job)
    assert world.armada.jobs[successor].job.annotations[names.ID] == job


async def test_pod_that_knows_the_run_as_well_keeps_no_job_away_nor_says_who_it_is(world: World) -> None:
    job = world.running()
    run = world.pod_of(job).metadata.labels["armada_job_run_id"]
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        world.pods._put(forged(world, job, run=run))
        signal = await preempted(world, coordinator, job)
        release = release_of(signal)
        failed = {uid: Verdict.EVICT for uid in release.verdicts if uid.startswith("forged")}
        world.snapshots.add(job)
        await coordinator.adapter.release(type(release)(release.signal_uid, {**release.verdicts, **failed}))
    (successor,) = world.armada.successors_of(job)
    assert world.armada.jobs[successor].job.annotations[names.ID] == job


async def test_job_that_nobody_has_preempted_is_submitted_by_no_gang_that_its_pod_names(world: World) -> None:
    (other,) = world.armada.submit("theirs", "their-set", item())
    world.armada.run(other)
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
    world.pods._put(forged(world, other, annotations={GANG: "gang-1", CARDINALITY: "2"}))
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        await coordinator.release(await coordinator.signal())
    assert [len(world.armada.successors_of(job)) for job in (*jobs, other)] == [1, 1, 0]


async def test_deletion_of_a_pod_that_names_a_job_hides_no_preemption(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unexplained_deletions, "WORD_SECONDS", 0.05)
    job = world.submit()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        world.pods._put(forged(world, job))
        world.pods._put(forged(world, job, deleted=True))
        await asyncio.sleep(0)
        await coordinator.signal()
        world.start(job)
        signal = await preempted(world, coordinator, job)
        assert [victim.workload.namespace for victim in signal.victims] == [NAMESPACE]
        await coordinator.release(signal)
    (successor,) = world.armada.successors_of(job)
    assert world.armada.jobs[successor].job.annotations[names.ID] == job


async def test_pod_that_names_a_successor_does_not_count_as_its_arrival(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
        (successor,) = world.armada.successors_of(job)
        ledger = coordinator.adapter._ledger
        assert successor in ledger.awaited
        world.pods._put(forged(world, successor))
        assert successor in ledger.awaited


async def gang_of_the_tenant(world: World, job: str) -> tuple[str, ...]:
    """His own one runs, beside a pod of his that says that somebody else's job is a member."""
    named = {GANG: "his", CARDINALITY: "3"}
    asked = (item(annotations=named) for _ in range(2))
    jobs = tuple(world.armada.submit(QUEUE, "his", *(in_his_namespace(one) for one in asked)))
    for one in jobs:
        world.start(one)
    world.pods._put(forged(world, job, annotations=named))
    return jobs


def in_his_namespace(one: JobSubmitRequestItem) -> JobSubmitRequestItem:
    one.namespace = "tenant-b"
    return one


async def test_preemption_of_a_gang_hides_none_of_a_job_that_a_pod_calls_its_member(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        world.armada.preempt(*await gang_of_the_tenant(world, job))
        his = await coordinator.signal()
        signal = await preempted(world, coordinator, job)
        assert [victim.workload.namespace for victim in signal.victims] == [NAMESPACE]
        await coordinator.release(his)
        await coordinator.release(signal)
    (successor,) = world.armada.successors_of(job)
    assert world.armada.jobs[successor].job.annotations[names.ID] == job


async def test_cancellation_of_a_gang_lets_no_pod_go_of_a_job_that_a_pod_calls_its_member(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        jobs = await gang_of_the_tenant(world, job)
        world.armada.preempt(*jobs)
        his = await coordinator.signal()
        world.armada.cancel(jobs[0])
        assert isinstance(await coordinator.report(), PreemptionCancelled)
        await coordinator.release(his)
    assert f"forged-{job}" in world.let_go
    assert world.pod_of(job).metadata.uid not in world.let_go
