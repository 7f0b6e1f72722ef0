"""A preempted job comes back exactly once: whatever dies, whatever is repeated, whatever comes late."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Signal, Verdict
from cedana_sched_armada import preemptions
from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaError
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.jobs import EXTERNAL_URI, FIRST, NUMBER, PREVIOUS
from cedana_sched_armada.server import ArmadaServer
from tests.unit.adapters.armada.armada_builders import (
    JOB_SET,
    QUEUE,
    Coordinator,
    KilledAt,
    World,
    release_of,
    rfc3339,
    until,
)
from tests.unit.adapters.armada.fake_armada import GANG


async def _preempted(world: World, coordinator: Coordinator, job: str) -> Signal:
    world.armada.preempt(job)
    return await coordinator.signal()


async def test_the_new_job_is_the_old_one_with_its_identity(world: World) -> None:
    job = world.submit(labels={"app": "md", "mine": "x-{JobId}"}, annotations={"note": "hello", names.WANTED: "run@3"})
    world.start(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await _preempted(world, coordinator, job))

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
        names.CONTINUES: "true",
        PREVIOUS: job,
        FIRST: job,
        NUMBER: "1",
        EXTERNAL_URI: f"cedana-sched:{job}",
    }
    (told,) = world.events.told
    assert (told.reason, told.warning) == ("Resubmitted", False)
    assert successor in told.message


async def test_a_job_that_goes_on_from_another_clusters_snapshot_comes_back_without_one_of_ours(world: World) -> None:
    job = world.submit(annotations={names.ID: "md", names.CONTINUES: "true"})
    world.start(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await _preempted(world, coordinator, job), Verdict.LET_GO)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_job_is_the_same_after_many_returns(world: World) -> None:
    first = job = world.submit(annotations={EXTERNAL_URI: "https://lab/{JobId}"}, variable="md-run-7")
    async with world.coordinator() as coordinator:
        for number in (1, 2, 3):
            world.start(job)
            await coordinator.release(await _preempted(world, coordinator, job))
            world.delete(job)
            (successor,) = world.armada.successors_of(job)
            annotations = world.armada.jobs[successor].job.annotations
            assert (annotations[PREVIOUS], annotations[FIRST]) == (job, first)
            assert (annotations[NUMBER], annotations[EXTERNAL_URI]) == (str(number), f"https://lab/{successor}")
            assert len(world.armada.jobs[successor].job.pod_spec.tolerations) == 2
            job = successor


@pytest.mark.parametrize("verdict", [Verdict.LET_GO, Verdict.KEEP_RUNNING, Verdict.NOT_NEEDED])
@pytest.mark.parametrize("saved_earlier", [True, False])
async def test_without_a_snapshot_of_the_moment_an_earlier_one_counts(
    world: World, verdict: Verdict, saved_earlier: bool
) -> None:
    job = world.submit()
    world.start(job)
    if saved_earlier:
        world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await _preempted(world, coordinator, job), verdict)
    assert len(world.armada.successors_of(job)) == saved_earlier
    assert [told.reason for told in world.events.told] == ["Resubmitted" if saved_earlier else "NotResubmitted"]


async def test_what_has_finished_meanwhile_does_not_begin_anew(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.faults["submit"] = ["published"]
        with pytest.raises(RetryableError):
            await coordinator.release(signal)
    async with world.coordinator() as coordinator:
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1
    assert world.slept == [10]


async def test_two_jobs_in_one_place_become_one(world: World) -> None:
    """Armada shows a job later than it may; the place was given twice, and the later job is cancelled."""
    job, other = world.submit(), world.submit()
    world.start(job)
    world.start(other)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    monkeypatch.setattr(preemptions, "REMEMBERED", 2)
    async with world.coordinator() as coordinator:
        for _ in range(4):
            job = world.submit()
            world.start(job)
            await coordinator.release(await _preempted(world, coordinator, job))
            remembered = coordinator.adapter._preemptions._successors
            await until(lambda: f"cedana-sched:{job}" in remembered)  # noqa: B023 - awaited here
        assert len(remembered) == 2


async def test_a_release_that_was_refused_for_good_is_tried_again_at_once(world: World) -> None:
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    job = world.submit()
    world.start(job)
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    assert f"{names.ID}: {job} and {names.CONTINUES}: 'true'" in told.message
    assert len(told.message) <= 1024, "Kubernetes takes no longer one"


@pytest.mark.parametrize(("hours", "settings"), [(24, {}), (2, {"giveUpSeconds": 7200})], ids=["a day", "as set"])
async def test_a_job_that_armada_does_not_know_any_more_is_given_up(
    world: World, hours: int, settings: dict[str, int]
) -> None:
    world.settings["limits"] = settings
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.forget(job)
        await _refused_for(world, coordinator, signal, hours=hours)
        await coordinator.release(signal)
    assert [one.reason for one in world.events.told] == ["NotResubmitted"]


@pytest.mark.parametrize("why", ["down", "denied"])
async def test_a_job_is_not_given_up_for_an_armada_that_is_away_or_does_not_let_us(world: World, why: str) -> None:
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    job = world.submit()
    world.start(job)
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
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.faults["submit"] = []
        world.armada.queues.discard(QUEUE)
        with pytest.raises(ArmadaError):
            await coordinator.release(signal)
        world.armada.queues.add(QUEUE)
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_gang_comes_back_whole_and_under_a_new_id(world: World) -> None:
    jobs = world.gang(3)
    for job in jobs[:2]:
        world.start(job)
    world.start(jobs[2], protected=False)
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        signal = await coordinator.signal()
        assert len(signal.victims) == 2
        await coordinator.release(signal)

    made = [world.armada.jobs[one].job for job in jobs for one in world.armada.successors_of(job)]
    assert len(made) == 3, "the one that is not protected as well: the others cannot start without it"
    assert len({one.annotations[GANG] for one in made}) == 1
    assert made[0].annotations[GANG] != "gang-1"
    assert {one.annotations["armadaproject.io/gangCardinality"] for one in made} == {"3"}
    assert {one.labels[GANG] for one in made} == {made[0].annotations[GANG]}
    assert [one.annotations.get(names.ID) for one in made] == [*jobs[:2], None]
    assert world.armada.calls.count("submit") == 1, "all at once"


async def test_what_is_left_of_an_earlier_gang_of_the_same_name_does_not_come_back(world: World) -> None:
    earlier, jobs = world.gang(2), world.gang(2)
    for job in (*earlier, *jobs):
        world.start(job)
    for job in earlier:
        world.change(job, phase="Failed")
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        await coordinator.release(await coordinator.signal())
    assert [len(world.armada.successors_of(job)) for job in (*earlier, *jobs)] == [0, 0, 1, 1]
    (successor,) = world.armada.successors_of(jobs[0])
    assert world.armada.jobs[successor].job.annotations["armadaproject.io/gangCardinality"] == "2"


async def test_a_gang_whose_members_fail_as_they_are_deleted_comes_back_whole(world: World) -> None:
    """They end at SIGTERM, before it is heard that they were preempted."""
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
        world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        for job in jobs:
            world.change(job, deletion_timestamp=rfc3339(world.now + 60), phase="Failed")
        world.armada.preempt(*jobs)
        await until(lambda: [len(world.armada.successors_of(job)) for job in jobs] == [1, 1])
        assert coordinator.reports.empty()


async def test_a_gang_without_a_snapshot_of_each_does_not_come_back(world: World) -> None:
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
    world.snapshots.add(jobs[0])
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        await coordinator.release(await coordinator.signal(), Verdict.LET_GO)
    assert [world.armada.successors_of(job) for job in jobs] == [[], []]


async def test_a_job_that_is_cancelled_while_held_stays_away(world: World) -> None:
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.cut_streams()
        world.armada.cancel(job)
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []
    assert "the job was cancelled" in world.events.told[0].message


async def test_a_job_that_is_cancelled_after_an_attempt_that_nobody_answered_stays_away(world: World) -> None:
    job = world.submit()
    world.start(job)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
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
    job = world.submit()
    world.start(job)
    submit = ArmadaServer.submit
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        ledger = coordinator.adapter._ledger

        async def slowly(server: ArmadaServer, job_set: JobSet, items: Any) -> tuple[str, ...]:
            made = await submit(server, job_set, items)
            world.armada.cancel(job)
            await until(lambda: ledger.cases[signal.uid].cancelled != "")
            return made

        monkeypatch.setattr(ArmadaServer, "submit", slowly)
        await coordinator.release(signal)
        assert not ledger.awaited
    assert len(world.armada.jobs) == 2, "it was submitted"
    assert world.armada.successors_of(job) == []
    assert world.slept == [], "who it was is known"


async def test_a_job_set_that_is_cancelled_while_held_stays_away(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.start(job)
    world.start(other)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.cancel_job_set(QUEUE, JOB_SET)
        await coordinator.release(signal)
    assert world.armada.successors_of(job) == []
    assert "the job set was cancelled" in world.events.told[0].message


async def test_another_job_that_is_cancelled_by_its_id_changes_nothing(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.start(job)
    world.start(other)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.cancel(other)
        await until(lambda: bool(world.let_go))
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_cancellation_by_id_is_none_of_the_job_set_after_a_restart(world: World) -> None:
    """The coordinator dies after it was asked for, and before the scheduler has carried it out."""
    job, other = world.submit(), world.submit()
    world.start(job)
    world.start(other)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.ask_to_cancel(other)
        await until(lambda: bool(world.let_go))
        await coordinator.adapter._ledger.written()
    world.armada.carry_out_cancellation(other)
    async with world.coordinator() as coordinator:
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_a_job_that_an_admin_cancels_with_its_executor_takes_nobody_along(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.start(job)
    world.start(other)
    async with world.coordinator() as coordinator:
        signal = await _preempted(world, coordinator, job)
        world.armada.carry_out_cancellation(other)
        await until(lambda: bool(world.let_go))
        await coordinator.release(signal)
    assert len(world.armada.successors_of(job)) == 1


async def test_events_that_are_read_twice_count_once(world: World) -> None:
    """A cancellation by id, read with a release, is not taken for one of the job set when the stream tells it late."""
    jobs = [world.submit() for _ in range(4)]
    pods = [world.start(job) for job in jobs]
    async with world.coordinator() as coordinator:
        first = await _preempted(world, coordinator, jobs[0])
        second = await _preempted(world, coordinator, jobs[1])
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
            await coordinator.release(await _preempted(world, coordinator, job))
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
            await coordinator.release(await _preempted(world, coordinator, job))
            world.delete(job)
            (job,) = world.armada.successors_of(job)
    assert world.armada.jobs[job].job.annotations[NUMBER] == "1"


async def test_what_armadas_database_does_not_know_its_events_do(world: World) -> None:
    world.submit()
    job = world.submit()
    world.start(job)
    world.now += 5_000
    world.armada.database = False
    async with world.coordinator() as coordinator:
        await coordinator.release(await _preempted(world, coordinator, job))
    assert len(world.armada.successors_of(job)) == 1
