"""The scheduling loop: what follows from each event, told as the stories of jobs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cedana_sched.local.jobs.job import JobPhase
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.jobs.journal import JournalUnavailableError
from cedana_sched.model.errors import NotFoundError, UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import OnCheckpointFailure
from cedana_sched.model.preemption import AfterCommit, Verdict
from tests.pauses import shorten_pauses
from tests.unit.local.jobs.loop_bench import Bench

QUEUED, STARTING, RUNNING = JobPhase.QUEUED, JobPhase.STARTING, JobPhase.RUNNING
PREEMPTING, SUSPENDED = JobPhase.PREEMPTING, JobPhase.SUSPENDED


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def borrowing(bench: Bench) -> None:
    """Group bio has the whole machine, and a job of ml wants its half back."""
    await bench.running("sim", cpus="4")
    bench.time += 50
    await bench.submit("train", "ml", cpus="2")


class TestStarting:
    async def test_a_job_that_is_opted_in_is_started_by_the_coordinator(self, bench: Bench) -> None:
        job = await bench.submit("sim")

        (report,) = bench.starting
        assert (report.identity, report.requested_snapshot) == (Identity("default", "sim"), None)
        assert report.workload.uid == job.runs[0].uid
        assert bench.started == []

    async def test_a_job_that_is_not_is_started_at_once(self, bench: Bench) -> None:
        job = await bench.submit("train", "ml")

        assert bench.started == [job.runs[0].uid]
        assert bench.reports == []

    async def test_it_runs_when_it_began_and_ends_as_its_process_does(self, bench: Bench) -> None:
        assert (await bench.running("sim")).phase is RUNNING
        assert (await bench.end("sim", 0)).phase is JobPhase.SUCCEEDED
        assert bench.ended == [bench.run("sim").uid]

        await bench.running("bad")
        job = await bench.end("bad", None, signal="SIGSEGV")
        assert (job.phase, job.signal, job.why) == (JobPhase.FAILED, "SIGSEGV", "killed by SIGSEGV")

    async def test_a_job_that_cannot_begin_fails_and_says_why(self, bench: Bench) -> None:
        await bench.submit("sim")

        job = await bench.end("sim", None, failure="its policy forbids a cold start")

        assert (job.phase, job.why) == (JobPhase.FAILED, "its policy forbids a cold start")

    async def test_a_cold_start_that_was_not_expected_is_told(self, bench: Bench) -> None:
        await bench.submit("sim")
        await bench.begin("sim", cold_because="its snapshot is damaged")

        assert bench.run("sim").cold_because == "its snapshot is damaged"
        assert bench.journal.events[-1] == "ColdStart"

    async def test_a_job_whose_processes_vanish_is_queued_again_but_not_for_ever(self, bench: Bench) -> None:
        await bench.submit("sim")
        for _ in range(4):
            await bench.begin("sim")
            assert (await bench.end("sim", None, lost=True)).phase is STARTING
        await bench.begin("sim")

        assert (await bench.end("sim", None, lost=True)).phase is JobPhase.FAILED

    async def test_a_job_that_a_killed_dump_took_along_continues_from_its_previous_snapshot(self, bench: Bench) -> None:
        await borrowing(bench)
        assert (await bench.end("sim", None, signal="SIGTRAP")).phase is PREEMPTING

        await bench.release(Verdict.NOT_NEEDED)

        job = bench.job("sim")
        assert (job.phase, job.runs[0].ending, job.runs[0].signal) == (QUEUED, "lost", "SIGTRAP")
        assert "Lost" in bench.journal.events

    async def test_events_of_runs_that_are_over_or_unknown_are_harmless(self, bench: Bench) -> None:
        await bench.running("sim")
        job = await bench.end("sim", 0)
        await bench.loop.on_run_ended(job.runs[0].uid, RunEndDetails(1.0, 1))
        await bench.loop.on_run_ended("never-ours", RunEndDetails(1.0, 1))
        await bench.loop.on_run_began(job.runs[0].uid, RunStartDetails(1.0))

        assert bench.job("sim") == job
        assert bench.terminated == [job.runs[0].uid]
        with pytest.raises(NotFoundError):
            bench.loop.find_active_run(job.runs[0].uid)


class TestPreemption:
    async def test_the_victim_is_held_and_the_preemptor_waits(self, bench: Bench) -> None:
        await borrowing(bench)

        (signal,) = bench.signals
        assert [victim.identity for victim in signal.victims] == [Identity("default", "sim")]
        assert (signal.preemptor, signal.reason, signal.after_commit) == (
            "train",
            "InCohortReclamation",
            AfterCommit.STOP,
        )
        assert signal.observed_at == bench.time
        assert (bench.phase("sim"), bench.phase("train")) == (PREEMPTING, QUEUED)
        assert bench.job("sim").why == "preempted for train by reclamation within the cohort"
        assert "preempts sim" in bench.job("train").why
        assert bench.terminated == []

    async def test_while_it_is_held_nothing_more_is_preempted(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.submit("other", cpus="1")

        assert len(bench.signals) == 1
        assert bench.job("train").why == "waits until sim is gone"

    async def test_after_the_commit_the_preemptor_runs_and_the_victim_continues_later(self, bench: Bench) -> None:
        await borrowing(bench)
        began = bench.run("sim").began_at or 0.0
        await bench.release(Verdict.COMMITTED)

        assert (bench.phase("sim"), bench.phase("train")) == (QUEUED, STARTING)
        assert bench.ended == [bench.run("sim").uid]
        await bench.begin("train")
        await bench.end("train", 0)

        assert bench.phase("sim") is STARTING
        assert [report.identity for report in bench.starting] == [Identity("default", "sim")] * 2
        job = await bench.begin("sim", restored=True, snapshot="default/sim/0/main@1")
        assert job.work_saved_seconds == bench.signals[0].observed_at - began
        assert (job.preemptions, job.runs[-1].restored_from) == (1, "default/sim/0/main@1")

    async def test_the_kill_that_ends_a_hold_is_no_failure_in_whatever_order_it_is_heard(self, bench: Bench) -> None:
        await borrowing(bench)
        assert (await bench.end("sim", None, signal="SIGKILL")).phase is PREEMPTING

        await bench.release(Verdict.COMMITTED)

        assert bench.phase("sim") is QUEUED
        assert bench.run("sim").ending == "preempted"

    async def test_one_that_is_let_go_is_terminated_and_queued_again(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.release(Verdict.EVICT, why="the store is full")

        assert bench.terminated == [bench.run("sim").uid]
        assert (bench.phase("sim"), bench.phase("train")) == (PREEMPTING, QUEUED)
        await bench.end("sim", 0)
        assert (bench.phase("sim"), bench.phase("train")) == (QUEUED, STARTING)
        assert bench.run("sim").succeeded is False

    async def test_one_that_ended_by_itself_while_it_was_held_has_ended(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.end("sim", 0)
        assert bench.phase("sim") is PREEMPTING

        await bench.release(Verdict.NOT_NEEDED)

        assert bench.phase("sim") is JobPhase.SUCCEEDED
        assert bench.phase("train") is STARTING

    async def test_one_that_keeps_running_is_left_alone_for_twice_as_long_each_time(self, bench: Bench) -> None:
        await borrowing(bench)
        for seconds in (30, 60, 120):
            await bench.release(Verdict.KEEP_RUNNING, why="a socket that cannot be dumped")
            assert bench.phase("sim") is RUNNING
            assert bench.job("sim").protected_until == bench.time + seconds
            assert bench.loop._wake_at == bench.time + seconds
            assert "no job can be preempted" in bench.job("train").why
            bench.time += seconds
            await bench.loop.resume_after_restart()
            assert bench.phase("sim") is PREEMPTING
        assert len({signal.uid for signal in bench.signals}) == 4

    async def test_the_end_of_a_protection_is_acted_upon_without_any_other_event(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.release(Verdict.KEEP_RUNNING)
        bench.time += 29.99
        told = asyncio.Event()
        bench.loop.subscribe(lambda _: told.set())
        running = asyncio.create_task(bench.loop.run())
        bench.time += 0.01

        async with asyncio.timeout(60):
            await told.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

        assert bench.phase("sim") is PREEMPTING

    async def test_a_job_that_is_not_opted_in_is_terminated_and_starts_anew(self, bench: Bench) -> None:
        await bench.running("train", "ml", cpus="4")
        await bench.submit("sim", cpus="2")

        assert bench.signals == []
        assert bench.terminated == [bench.run("train").uid]
        await bench.end("train", None, signal="SIGTERM")
        assert (bench.phase("train"), bench.phase("sim")) == (QUEUED, STARTING)

    async def test_when_the_preemptor_is_cancelled_the_preemption_is_called_off(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.loop.cancel("train")

        assert bench.cancelled == [bench.signals[0].uid]
        await bench.submit("other", cpus="1")
        assert len(bench.cancelled) == 1
        await bench.release(Verdict.NOT_NEEDED)
        assert bench.phase("sim") is RUNNING

    async def test_a_commit_that_crossed_the_cancellation_stands(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.loop.cancel("train")
        await bench.release(Verdict.COMMITTED)

        assert bench.phase("sim") is STARTING

    async def test_a_release_that_is_repeated_changes_nothing(self, bench: Bench) -> None:
        await borrowing(bench)
        signal = bench.signals[0]
        await bench.release(Verdict.COMMITTED, signal)
        before = bench.job("sim")
        await bench.release(Verdict.EVICT, signal)

        assert bench.job("sim") == before

    async def test_a_job_that_starts_is_preempted_when_it_runs(self, bench: Bench) -> None:
        await bench.submit("sim", cpus="4")
        await bench.submit("train", "ml", cpus="2")
        assert bench.signals == []

        await bench.begin("sim")

        assert len(bench.signals) == 1

    async def test_a_job_that_is_chased_round_keeps_its_place_for_a_while(self, bench: Bench) -> None:
        await bench.submit("sim")
        for _ in range(4):
            await bench.begin("sim")
            await bench.loop.preempt("sim")
            await bench.release(Verdict.COMMITTED)
        await bench.begin("sim")

        assert bench.job("sim").protected_until == bench.time + 30


class TestGangs:
    async def test_a_gang_starts_as_one_and_each_replica_has_its_identity(self, bench: Bench) -> None:
        await bench.submit("mpi", replicas=2)

        assert [report.identity for report in bench.starting] == [Identity("default", "mpi", i) for i in (0, 1)]
        assert [report.workload.name for report in bench.starting] == ["mpi-0", "mpi-1"]
        await bench.loop.on_run_began(bench.job("mpi").runs[0].uid, RunStartDetails(bench.time))
        assert bench.phase("mpi") is STARTING
        assert (await bench.begin("mpi")).phase is RUNNING

    async def test_a_gang_is_one_set_of_victims(self, bench: Bench) -> None:
        await bench.running("mpi", replicas=4)
        await bench.submit("train", "ml", cpus="2")

        (signal,) = bench.signals
        assert [victim.gang for victim in signal.victims] == [bench.job("mpi").uid] * 4
        await bench.release(Verdict.COMMITTED)
        assert bench.phase("mpi") is QUEUED
        await bench.begin("train")
        await bench.end("train")
        assert len(bench.job("mpi").active_runs) == 4

    async def test_one_failure_ends_the_gang_and_is_what_is_told(self, bench: Bench) -> None:
        await bench.running("mpi", replicas=2)
        await bench.end("mpi", 3, index=1)
        assert bench.terminated == [bench.job("mpi").runs[0].uid]
        assert bench.phase("mpi") is RUNNING

        job = await bench.end("mpi", 143, index=0)

        assert (job.phase, job.exit_code, job.why) == (JobPhase.FAILED, 3, "exit code 3")

    async def test_one_loss_brings_the_whole_gang_back(self, bench: Bench) -> None:
        await bench.running("mpi", replicas=2)
        await bench.end("mpi", None, index=1, lost=True)
        await bench.end("mpi", 143, index=0)

        assert bench.phase("mpi") is STARTING
        assert len(bench.job("mpi").active_runs) == 2

    async def test_a_replica_that_is_done_is_not_started_again(self, bench: Bench) -> None:
        await bench.running("mpi", replicas=2)
        await bench.end("mpi", 0, index=0)
        await bench.loop.preempt("mpi")
        await bench.release(Verdict.COMMITTED)

        assert [run.index for run in bench.job("mpi").active_runs] == [1]
        await bench.begin("mpi")
        assert (await bench.end("mpi", 0, index=1)).phase is JobPhase.SUCCEEDED


class TestRequests:
    async def test_a_checkpoint_on_request_stops_the_job_until_it_is_restored(self, bench: Bench) -> None:
        await bench.running("sim")
        await bench.loop.checkpoint("sim", leave_running=False)
        (signal,) = bench.signals
        assert (signal.reason, signal.preemptor) == ("UserRequest", None)
        assert signal.victims[0].policy.on_checkpoint_failure is OnCheckpointFailure.KEEP_RUNNING
        await bench.release(Verdict.COMMITTED)
        assert bench.phase("sim") is SUSPENDED

        await bench.loop.restore("sim", 2)

        assert bench.starting[-1].requested_snapshot == SnapshotRef(Identity("default", "sim"), 2)
        assert bench.phase("sim") is STARTING

    async def test_a_checkpoint_of_a_running_job_disturbs_nothing(self, bench: Bench) -> None:
        await bench.running("sim")
        bench.time += 10
        uid = await bench.loop.checkpoint("sim", leave_running=True)
        assert bench.signals[0].after_commit is AfterCommit.LEAVE_RUNNING
        assert bench.phase("sim") is RUNNING
        with pytest.raises(UsageError, match="already"):
            await bench.loop.checkpoint("sim", leave_running=True)

        await bench.loop.on_snapshot_terminal(uid, committed=True)
        await bench.end("sim", 1)
        await bench.loop.restore("sim")
        job = await bench.begin("sim", restored=True)

        assert job.work_saved_seconds == 10

    async def test_a_snapshot_under_way_is_known_until_it_is_settled_or_its_job_is_gone(self, bench: Bench) -> None:
        await bench.running("sim")
        settled = await bench.loop.checkpoint("sim", leave_running=True)
        again = await bench.restart()
        assert list(again.loop._state.signals) == [settled]
        await again.loop.on_snapshot_terminal(settled, committed=False)
        assert list(again.loop._state.signals) == []

        await again.loop.checkpoint("sim", leave_running=True)
        await again.end("sim")
        assert list(again.loop._state.signals) == []

    async def test_an_ended_job_begins_again_with_all_its_replicas(self, bench: Bench) -> None:
        await bench.running("mpi", replicas=2)
        await bench.end("mpi", 0, index=0)
        await bench.end("mpi", 0, index=1)
        bench.time += 1
        await bench.loop.restore("mpi")

        assert [run.index for run in bench.job("mpi").active_runs] == [0, 1]

    async def test_a_job_without_an_id_cannot_be_checkpointed(self, bench: Bench) -> None:
        await bench.running("train", "ml")

        with pytest.raises(UsageError, match="has no checkpoint id") as caught:
            await bench.loop.checkpoint("train", leave_running=True)
        assert "optIn" in caught.value.remedy

    async def test_an_id_belongs_to_one_live_job(self, bench: Bench) -> None:
        await bench.submit("first", id="md")
        with pytest.raises(UsageError, match="belongs to job first"):
            await bench.submit("second", id="md")

        await bench.begin("first")
        await bench.end("first")
        await bench.submit("second", id="md")

        with pytest.raises(UsageError, match="belongs to job second"):
            await bench.loop.restore("first")

    async def test_cancel_ends_a_job_wherever_it_is(self, bench: Bench) -> None:
        await bench.running("running", cpus="4")
        await bench.submit("queued", cpus="4")
        assert (await bench.loop.cancel("queued")).phase is JobPhase.CANCELLED

        assert (await bench.loop.cancel("running")).phase is RUNNING
        assert (await bench.end("running", 0)).phase is JobPhase.CANCELLED
        assert bench.job("running").active_runs == ()

        await bench.submit("starting")
        await bench.loop.cancel("starting")
        assert bench.terminated == [bench.job("running").runs[0].uid]
        await bench.begin("starting")
        assert bench.terminated[-1] == bench.run("starting").uid
        assert (await bench.end("starting", 143)).phase is JobPhase.CANCELLED
        with pytest.raises(UsageError, match="has ended already"):
            await bench.loop.cancel("starting")

    async def test_a_held_job_that_is_cancelled_ends_when_it_is_released(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.loop.cancel("sim")
        assert bench.cancelled == [bench.signals[0].uid]
        assert bench.terminated == []

        await bench.release(Verdict.NOT_NEEDED)
        assert bench.terminated == [bench.run("sim").uid]
        await bench.end("sim", None, signal="SIGTERM")

        assert (bench.phase("sim"), bench.phase("train")) == (JobPhase.CANCELLED, STARTING)

    async def test_what_cannot_be_asked_is_refused_by_name(self, bench: Bench) -> None:
        await bench.submit("sim")
        for ask in (bench.loop.preempt("sim"), bench.loop.checkpoint("sim", leave_running=False)):
            with pytest.raises(UsageError, match="does not run, it is Starting"):
                await ask
        with pytest.raises(UsageError, match="cannot be restored while it is Starting"):
            await bench.loop.restore("sim")
        with pytest.raises(NotFoundError, match="nobody"):
            await bench.loop.cancel("nobody")

    async def test_a_job_is_found_by_uid_beginning_name_or_id(self, bench: Bench) -> None:
        job = await bench.submit("sim", id="md")

        assert {bench.loop.find(key).uid for key in (job.uid, "sim", "md")} == {job.uid}
        await bench.submit("other")
        with pytest.raises(UsageError, match="several"):
            bench.loop.find("u")


class TestRestart:
    async def test_a_pending_preemption_is_repeated_with_the_same_uid_and_can_be_released(self, bench: Bench) -> None:
        await borrowing(bench)

        again = await bench.restart()

        assert bench.signals[0] in [getattr(report, "signal", None) for report in again.pending]
        assert again.signals == []
        await again.release(Verdict.COMMITTED, bench.signals[0])
        assert (again.phase("sim"), again.phase("train")) == (QUEUED, STARTING)

    async def test_ends_and_beginnings_are_repeated_ends_first(self, bench: Bench) -> None:
        await bench.running("done")
        await bench.end("done")
        await bench.submit("new")

        again = await bench.restart()

        assert [type(report).__name__ for report in again.pending] == ["Ended", "Starting"]

    async def test_what_was_asked_of_the_machine_is_asked_again(self, bench: Bench) -> None:
        await bench.submit("cold", "ml")
        await bench.running("going")
        await bench.loop.cancel("going")

        again = await bench.restart()

        assert again.started == [bench.run("cold").uid]
        assert again.terminated == [bench.run("going").uid]

    async def test_a_cancelled_preemption_is_cancelled_again(self, bench: Bench) -> None:
        await borrowing(bench)
        await bench.loop.cancel("train")

        again = await bench.restart()

        assert [type(report).__name__ for report in again.pending] == ["Preempted", "PreemptionCancelled"]

    async def test_a_group_that_is_gone_from_the_file_leaves_its_jobs_waiting_with_a_reason(self, bench: Bench) -> None:
        await bench.running("sim", cpus="4")
        await bench.submit("train", "ml", cpus="4")

        again = await bench.restart('[[groups]]\nname = "bio"\nnominalQuota = {cpu = 2, memory = "4Gi"}\n')

        assert again.job("train").why == "there is no group 'ml'"
        assert again.phase("sim") is RUNNING


class TestJournal:
    async def test_a_request_that_cannot_be_written_has_not_happened(self, bench: Bench) -> None:
        await bench.running("sim", cpus="4")
        before = (bench.loop.jobs, list(bench.reports))
        bench.journal.full = True
        with pytest.raises(JournalUnavailableError):
            await bench.submit("train", "ml", cpus="2")
        with pytest.raises(JournalUnavailableError):
            await bench.loop.cancel("sim")

        assert (bench.loop.jobs, bench.reports) == before
        assert bench.terminated == []

    async def test_what_the_machine_reports_is_written_when_it_can_be(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shorten_pauses(monkeypatch)
        await bench.running("sim")
        bench.journal.full = True
        ending = asyncio.create_task(bench.end("sim"))
        async with asyncio.timeout(60):
            await bench.journal.refused.wait()
        assert bench.phase("sim") is RUNNING
        bench.journal.full = False

        assert (await ending).phase is JobPhase.SUCCEEDED

    async def test_a_caller_that_goes_away_does_not_stop_what_it_asked_for(self, bench: Bench) -> None:
        asking = asyncio.create_task(bench.submit("sim"))
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await bench.loop.resume_after_restart()

        assert bench.phase("sim") is STARTING
