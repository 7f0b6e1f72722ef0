"""From Armada's event streams to what the coordinator hears: one signal for each preemption, and who is let go."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Verdict
from cedana_sched_armada import armada_client
from tests.unit.adapters.armada.armada_builders import JOB_SET, NAMESPACE, QUEUE, World, preempted, rfc3339, until


async def test_a_preemption_becomes_a_signal_of_its_run(world: World) -> None:
    job = world.submit()
    pod = world.start(job)
    async with world.coordinator() as coordinator:
        world.armada.preempt(job, by="01other")
        signal = await coordinator.signal()

    (victim,) = signal.victims
    assert signal.uid == f"{job}@run-of-{job}"
    assert signal.adapter == "armada"
    assert (signal.preemptor, signal.release_group) == ("01other", "01other")
    assert (signal.observed_at, signal.not_after) == (world.now, world.now + 240)
    assert (victim.workload.uid, victim.workload.node) == (pod, "node-1")
    assert victim.identity == Identity(NAMESPACE, job, 0)
    assert victim.gang is None
    assert world.let_go == []


async def test_victims_have_the_policy_of_their_pod_and_not_only_the_one_that_its_annotation_names(
    world: World,
) -> None:
    """A queue's policy, and one that selects the pod's labels, are in no annotation `policy`."""
    world.policies.of_pods = CheckpointPolicy(deadline_seconds=77.0)
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        assert [victim.policy.deadline_seconds for victim in signal.victims] == [77.0]
        world.delete(job)
        assert coordinator.adapter._preemptions.pending_reports() == (Preempted(signal),), "also once the pod is gone"


async def test_the_reason_tells_who_asked_for_the_place(world: World) -> None:
    jobs = [world.running(), world.running()]
    async with world.coordinator() as coordinator:
        for job, by, reason in zip(jobs, ("01other", ""), ("Preempted", "PreemptionRequested"), strict=True):
            world.armada.preempt(job, by=by)
            assert (await coordinator.signal()).reason == reason


async def test_a_deleted_victim_has_the_deadline_of_its_deletion(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        assert await coordinator.adapter.hold(signal) == world.now + 240

        world.change(job, deletion_timestamp=rfc3339(world.now + 90))
        assert await coordinator.signal() == signal, "told again, so that the hold is placed anew"
        assert await coordinator.adapter.hold(signal) == world.now + 90


async def test_a_gang_is_one_signal_and_comes_or_goes_together(world: World) -> None:
    first, second = world.gang(2)
    world.start(first)
    world.start(second)
    async with world.coordinator() as coordinator:
        world.armada.preempt(second, first)
        signal = await coordinator.signal()
        await coordinator.release(signal)
        assert coordinator.reports.empty()

    assert {victim.identity.id for victim in signal.victims} == {first, second}
    assert {victim.gang for victim in signal.victims} == {"gang-1"}
    assert signal.uid == f"{second}@run-of-{second}"


async def test_job_sets_without_protected_pods_cost_nothing(world: World) -> None:
    ours, theirs = world.submit(), world.submit("other")
    (elsewhere,) = world.armada.submit("ml", "train", *[]) or ("",)
    assert elsewhere == ""
    world.start(ours)
    world.start(theirs, protected=False)
    async with world.coordinator() as coordinator:
        world.armada.preempt(theirs)
        assert (await preempted(world, coordinator, ours)).uid.startswith(ours)

    assert {(queue, job_set) for queue, job_set, _ in world.armada.watching} == {(QUEUE, JOB_SET)}
    assert set(world.armada.calls) == {"watch"}


async def test_a_job_that_is_not_protected_is_left_to_armada(world: World) -> None:
    ours, theirs = world.submit(), world.submit()
    world.start(ours)
    world.start(theirs, protected=False)
    async with world.coordinator() as coordinator:
        world.armada.preempt(theirs, ours)
        assert (await coordinator.signal()).uid.startswith(ours)
        assert coordinator.reports.empty()
    assert "details" not in world.armada.calls


async def test_a_queue_that_is_not_opted_in_is_not_followed(world: World) -> None:
    world.settings["onlyQueues"] = ["ml"]
    world.start(world.submit())
    async with world.coordinator() as coordinator:
        await coordinator.adapter._ready.wait()
        assert coordinator.adapter._job_sets is not None
        assert coordinator.adapter._job_sets._watched == {}


async def test_every_end_that_is_no_preemption_lets_the_pod_go(world: World) -> None:
    asked, with_its_set, returned = world.submit(), world.submit(), world.submit()
    pods = [world.start(job) for job in (asked, with_its_set, returned)]
    async with world.coordinator() as coordinator:
        world.armada.cancel(asked)
        await until(lambda: world.let_go == pods[:1])
        world.armada.return_lease(returned)
        await until(lambda: set(world.let_go) == {pods[0], pods[2]})
        world.armada.cancel_job_set(QUEUE, JOB_SET)
        await until(lambda: set(world.let_go) == set(pods))
        assert coordinator.reports.empty()


async def test_the_end_of_an_earlier_run_that_is_heard_late_lets_nobody_go(world: World) -> None:
    job, other = world.submit(), world.submit()
    pods = [world.start(one) for one in (job, other)]
    async with world.coordinator() as coordinator:
        world.armada.return_lease(job, pod="its-earlier-one")
        world.armada.return_lease(other, pod=pods[1])
        await until(lambda: world.let_go != [])
        assert world.let_go == pods[1:]
        assert (await preempted(world, coordinator, job)).uid.startswith(job)


async def test_a_victim_that_does_not_run_is_let_go_at_once(world: World) -> None:
    job = world.submit()
    pod = world.start(job, phase="Pending")
    async with world.coordinator() as coordinator:
        world.armada.preempt(job)
        await until(lambda: world.let_go == [pod])
        await until(lambda: bool(world.events.told))
        assert coordinator.reports.empty()
    assert world.events.told[0].reason == "NotResubmitted"


async def test_a_deleted_pod_of_a_queue_that_is_not_ours_is_let_go_at_once(world: World) -> None:
    world.settings["onlyQueues"] = ["ml"]
    job = world.submit()
    pod = world.start(job)
    async with world.coordinator() as coordinator:
        world.change(job, deletion_timestamp=rfc3339(world.now + 90))
        await until(lambda: world.let_go == [pod])
        assert coordinator.reports.empty()
    async with world.coordinator():
        await until(lambda: world.let_go == [pod, pod])
    assert set(world.armada.calls) == set()


async def test_a_broken_stream_goes_on_where_it_stood(world: World) -> None:
    job, other = world.running(), world.running()
    async with world.coordinator() as coordinator:
        first = await preempted(world, coordinator, job)
        world.armada.cut_streams()
        second = await preempted(world, coordinator, other)
        assert coordinator.reports.empty(), "what was told is not told again"
    assert (first.uid, second.uid) == (f"{job}@run-of-{job}", f"{other}@run-of-{other}")
    assert world.armada.watching[1][2] > world.armada.watching[0][2]


async def test_job_sets_are_followed_however_few_calls_a_connection_allows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armada_client, "WATCHES_PER_CONNECTION", 2)
    job_sets = [f"set-{number}" for number in range(5)]
    jobs = [world.submit(job_set) for job_set in job_sets]
    for job in jobs:
        world.start(job)
    async with world.armada.serving(calls_per_connection=2) as world.address, world.coordinator() as coordinator:
        await until(lambda: {job_set for _, job_set, _ in world.armada.watching} == set(job_sets))
        world.armada.preempt(jobs[-1])
        await coordinator.release(await coordinator.signal())
    assert len(world.armada.successors_of(jobs[-1])) == 1


async def test_a_preemption_that_is_heard_after_its_pod_is_gone_is_one_all_the_same(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await until(lambda: bool(world.armada.watching))
        world.armada.ingesting = False
        world.armada.preempt(job)
        world.change(job, deletion_timestamp=rfc3339(world.now + 30))
        world.delete(job)
        world.armada.ingest()
        await until(lambda: len(world.armada.successors_of(job)) == 1)
        assert coordinator.reports.empty(), "there is nothing to save any more"


async def test_a_cancellation_while_it_is_held_takes_the_preemption_back(world: World) -> None:
    job = world.submit()
    pod = world.start(job)
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.cancel(job)
        assert await coordinator.report() == PreemptionCancelled(signal.uid, "the job was cancelled")
        await until(lambda: world.let_go == [pod])
        await coordinator.release(signal, Verdict.NOT_NEEDED)
    assert world.armada.successors_of(job) == []
