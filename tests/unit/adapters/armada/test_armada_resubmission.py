"""A preempted job comes back exactly once: whatever dies, whatever is repeated, whatever comes late."""

from __future__ import annotations

import pytest

from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched_armada import preemption_tracker
from cedana_sched_armada.job_of_pod import EXTERNAL_URI, FIRST, NUMBER, PREVIOUS
from tests.unit.adapters.armada.armada_builders import KilledAt, World, preempted, release_of, until


async def test_the_new_job_is_the_old_one_with_its_identity(world: World) -> None:
    job = world.running(
        labels={"app": "md", "mine": "x-{JobId}"}, annotations={"note": "hello", names.RESTORE_FROM: "run@3"}
    )
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))

    (successor,) = world.armada.successors_of(job)
    old, new = world.armada.jobs[job], world.armada.jobs[successor]
    assert (new.queue, new.job_set) == (old.queue, old.job_set)
    assert (new.job.namespace, new.job.priority) == (old.job.namespace, old.job.priority)
    assert new.job.pod_spec.containers == old.job.pod_spec.containers
    assert new.job.pod_spec.priorityClassName == "armada-preemptible"
    assert [one.key for one in new.job.pod_spec.tolerations] == ["armada", "armada"], "ours, and the server's again"
    assert dict(new.job.labels) == {"app": "md", "mine": f"x-{successor}"}
    assert dict(new.job.annotations) == {
        "note": "hello",
        names.ID: job,
        names.EXPECT_SNAPSHOT: "true",
        PREVIOUS: job,
        FIRST: job,
        NUMBER: "1",
        EXTERNAL_URI: f"cedana-sched:{job}",
    }
    (told,) = world.events.told
    assert (told.reason, told.warning) == ("Resubmitted", False)
    assert successor in told.message


async def test_a_job_that_goes_on_from_another_clusters_snapshot_comes_back_without_one_of_ours(world: World) -> None:
    job = world.running(annotations={names.ID: "md", names.EXPECT_SNAPSHOT: "true"})
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job), Verdict.EVICT)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_job_is_the_same_after_many_returns(world: World) -> None:
    first = job = world.submit(annotations={EXTERNAL_URI: "https://lab/{JobId}"}, variable="md-run-7")
    async with world.coordinator() as coordinator:
        for number in (1, 2, 3):
            world.start(job)
            await coordinator.release(await preempted(world, coordinator, job))
            world.delete(job)
            (successor,) = world.armada.successors_of(job)
            annotations = world.armada.jobs[successor].job.annotations
            assert (annotations[PREVIOUS], annotations[FIRST]) == (job, first)
            assert (annotations[NUMBER], annotations[EXTERNAL_URI]) == (str(number), f"https://lab/{successor}")
            assert len(world.armada.jobs[successor].job.pod_spec.tolerations) == 2
            job = successor


@pytest.mark.parametrize("verdict", [Verdict.EVICT, Verdict.KEEP_RUNNING, Verdict.NOT_NEEDED])
@pytest.mark.parametrize("saved_earlier", [True, False])
async def test_without_a_snapshot_of_the_moment_an_earlier_one_counts(
    world: World, verdict: Verdict, saved_earlier: bool
) -> None:
    job = world.running()
    if saved_earlier:
        world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job), verdict)
    assert len(world.armada.successors_of(job)) == saved_earlier
    assert [told.reason for told in world.events.told] == ["Resubmitted" if saved_earlier else "NotResubmitted"]


async def test_what_has_finished_meanwhile_does_not_begin_anew(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.change(job, phase="Succeeded")
        await coordinator.release(signal, Verdict.NOT_NEEDED)
    assert world.armada.successors_of(job) == []


@pytest.mark.parametrize("gang", [False, True], ids=["job", "gang"])
async def test_exactly_one_job_wherever_the_adapter_dies(world: World, gang: bool) -> None:
    """At every wait of a release; the next coordinator is told to release again, as its journal says."""
    deaths = 0
    while True:
        jobs = world.gang(2, f"gang-{deaths}", f"set-{deaths}") if gang else (world.submit(f"set-{deaths}"),)
        for job in jobs:
            world.start(job)
        async with world.coordinator() as coordinator:
            world.armada.preempt(*jobs)
            signal = await coordinator.signal()
            dying = KilledAt(coordinator.adapter.release(release_of(signal)), deaths)
            await dying
        async with world.coordinator() as coordinator:
            await coordinator.release(signal)
            await coordinator.release(signal)
        for job in jobs:
            assert len(world.armada.successors_of(job)) == 1, f"died at wait {deaths}"
        for job in jobs:
            world.delete(job)
        if dying.survived:
            break
        deaths += 1
    assert deaths >= 5, "there are that many places to die at"


@pytest.mark.parametrize("where", ["before", "published", "after"])
async def test_exactly_one_job_wherever_armadas_server_dies(world: World, where: str) -> None:
    """`published`: the job is made, and its client id is not remembered."""
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.faults["submit"] = [where]
        world.armada.ingesting = False
        with pytest.raises(RetryableError, match=f"killed {where}"):
            await coordinator.release(signal)
        tried_at = world.now
        world.armada.ingest()
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
    assert world.now >= tried_at + 10, "what was published had the time to be seen"


async def test_a_new_coordinator_waits_for_an_attempt_of_the_last_one(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.faults["submit"] = ["published"]
        with pytest.raises(RetryableError):
            await coordinator.release(signal)
    async with world.coordinator() as coordinator:
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
    assert world.slept == [10]


async def test_two_jobs_in_one_place_become_one(world: World) -> None:
    """Armada shows a job later than it may; the place was given twice, and the later job is cancelled."""
    job, _other = world.running(), world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.armada.faults["submit"] = ["published"]
        world.armada.ingesting = False
        with pytest.raises(RetryableError):
            await coordinator.release(signal)
        await coordinator.release(signal)
        twice = world.armada.successors_of(job)
        assert len(twice) == 2
        world.armada.ingest()
        await until(lambda: len(world.armada.successors_of(job)) == 1)
    assert world.armada.successors_of(job) == twice[:1]


async def test_successors_are_not_remembered_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption_tracker, "REMEMBERED", 2)
    async with world.coordinator() as coordinator:
        for _ in range(4):
            job = world.running()
            await coordinator.release(await preempted(world, coordinator, job))
            remembered = coordinator.adapter._preemptions._successors
            await until(lambda: any(f"cedana-sched:{job}" in key for key in remembered))  # noqa: B023 - awaited here
        assert len(remembered) == 2


async def test_events_that_are_read_twice_count_once(world: World) -> None:
    """A cancellation by id, read with a release, is not taken for one of the job set when the stream tells it late."""
    jobs = [world.submit() for _ in range(4)]
    pods = [world.start(job) for job in jobs]
    async with world.coordinator() as coordinator:
        first = await preempted(world, coordinator, jobs[0])
        second = await preempted(world, coordinator, jobs[1])
        world.armada.ask_to_cancel(jobs[2])
        await until(lambda: pods[2] in world.let_go)
        world.armada.stalled = True
        world.armada.carry_out_cancellation(jobs[2])
        await coordinator.release(first)
        world.armada.go_on()
        world.armada.return_lease(jobs[3])
        await until(lambda: pods[3] in world.let_go)  # the stream has told it, and what came before
        await coordinator.release(second)
    assert [len(world.armada.successors_of(job)) for job in jobs] == [1, 1, 0, 0]


async def test_again_and_again_comes_back_later_and_at_last_not_at_all(world: World) -> None:
    world.settings["limits"] = {"resubmissions": 3, "firstPauseSeconds": 10, "longestPauseSeconds": 15}
    job = world.submit()
    async with world.coordinator() as coordinator:
        for _ in range(4):
            world.start(job)
            await coordinator.release(await preempted(world, coordinator, job))
            world.delete(job)
            job = next(iter(world.armada.successors_of(job)), job)
    assert world.slept == [10, 15]
    assert world.armada.jobs[job].job.annotations[NUMBER] == "3"
    assert (world.events.told[-1].reason, world.events.told[-1].warning) == ("NotResubmitted", True)
    assert "3 resubmissions in a row are the limit" in world.events.told[-1].message


async def test_a_long_run_begins_a_new_row(world: World) -> None:
    world.settings["limits"] = {"resubmissions": 1, "freshAfterSeconds": 600}
    job = world.submit()
    async with world.coordinator() as coordinator:
        for _ in range(3):
            world.start(job)
            world.now += 600
            await coordinator.release(await preempted(world, coordinator, job))
            world.delete(job)
            (job,) = world.armada.successors_of(job)
    assert world.armada.jobs[job].job.annotations[NUMBER] == "1"


async def test_what_armadas_database_does_not_know_its_events_do(world: World) -> None:
    world.submit()
    job = world.running()
    world.now += 5_000
    world.armada.database = False
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
    assert len(world.armada.successors_of(job)) == 1
