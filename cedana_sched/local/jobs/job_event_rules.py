"""The effect of each event on a job: synchronous rules on a draft, without I/O or a clock.

A run ends only by a report of the runtime or the coordinator; until then its job keeps its place. While the
coordinator holds a job, the job's end waits for the release, whose verdict distinguishes a preemption from another end.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.local.jobs.job import (
    CANCELLED,
    LOST,
    PREEMPTED,
    WITH_GANG,
    Job,
    JobDescription,
    JobPhase,
    Run,
    RunObstacle,
    TransitionCause,
    apply_transition,
)
from cedana_sched.local.jobs.loop_state import Draft, StartRun, TerminateRun
from cedana_sched.local.scheduler.preemption_backoff import protection_seconds
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import WorkloadRef

_OF_A_KILLED_CRIU = frozenset({"SIGTRAP", "SIGSEGV"})
"""Signals that end a program whose dump was killed midway, not its own failure; see `snapshot.killed_dump_cleanup`."""
MOST_LOSSES = 5
"""Number of lost runs after which the job fails instead of being requeued."""


class RunStartDetails(msgspec.Struct, frozen=True):
    """The start of a run. `snapshot` and `cold_because` are None if the coordinator did not report them."""

    at: float
    restored: bool = False
    snapshot: str | None = None
    cold_because: str | None = None
    notes: tuple[str, ...] = ()


class RunEndDetails(msgspec.Struct, frozen=True):
    """The end of a run: it exited (`exit_code`, `signal`), could not start (`failure`), or was lost (`lost`)."""

    at: float
    exit_code: int | None = None
    signal: str | None = None
    failure: str | None = None
    lost: bool = False

    @property
    def words(self) -> str:
        if self.failure is not None:
            return self.failure
        if self.lost:
            if self.signal is not None:
                return f"killed by {self.signal} while it was saved"
            return "its processes are gone without a trace"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exit code {self.exit_code}"


def queue_job(draft: Draft, description: JobDescription) -> Job:
    """Queue a new job.

    Raises:
        UsageError: another live job has the checkpoint id.
    """
    require_unused_checkpoint_id(draft, description)
    job = draft.put(Job(description=description, why="submitted"))
    draft.add_event(job, "Submitted", f"{description.name} was submitted to group {description.group}")
    return job


def require_unused_checkpoint_id(draft: Draft, description: JobDescription) -> None:
    """Reject a checkpoint id that another live job has, so that no two workloads are restored from one identity.

    Raises:
        UsageError: another live job has the id; the error names the job.
    """
    for other in draft.all_jobs():
        same = (other.description.namespace, other.description.id) == (description.namespace, description.id)
        if description.id is not None and same and other.live and other.uid != description.uid:
            raise UsageError(
                "id",
                description.id,
                f"belongs to job {other.description.name} ({other.uid}), which is {other.phase.value}",
                remedy="cancel that job, wait for its end, or choose another id",
            )


def admit_job(draft: Draft, job: Job, node: str) -> None:
    """Admit a job: add a run for each replica that has not completed its work."""
    description, first = job.description, len(job.runs)
    indexes = [index for index in range(description.replicas) if index not in job.completed_replicas]
    why, attempts = "has its place, is being started", job.attempts + 1
    job = apply_transition(job, TransitionCause.ADMITTED, why, admitted_at=draft.now, attempts=attempts, claims=False)
    for number, index in enumerate(indexes, start=first):
        job = job.with_run(Run(uid=f"{job.uid}-r{number}", index=index, attempt=attempts))
    draft.put(job)
    draft.add_event(job, "Admitted", f"{description.name} has its place in group {description.group}")
    start_unstarted_runs(draft, job, node)


def start_unstarted_runs(draft: Draft, job: Job, node: str) -> None:
    """Start all runs that have not started. Idempotent, so it is repeated after a restart of the engine."""
    for run in job.active_runs:
        if run.began_at is None:
            workload = job.workload(run, node)
            report = report_of_run_start(job, run, workload)
            if report is None:
                draft.actions.append(StartRun(workload))
            else:
                draft.reports.append(report)


def report_of_run_start(job: Job, run: Run, workload: WorkloadRef) -> Starting | None:
    """Return the report on which the coordinator starts a run; None for a job that is not opted in."""
    identity = job.description.identity(run.index)
    if identity is None:
        return None
    wanted = SnapshotRef(identity, job.wanted_generation) if job.wanted_generation is not None else None
    loss = "its processes were lost" if _was_lost_before(job, run) else None
    return Starting(workload, identity, job.description.policy, wanted, loss=loss)


def _was_lost_before(job: Job, run: Run) -> bool:
    """Whether the previous run of the replica was lost, with its work after the last snapshot."""
    earlier = [one for one in job.runs if one.index == run.index and one.uid != run.uid and one.attempt < run.attempt]
    return bool(earlier) and max(earlier, key=lambda one: one.attempt).ending == LOST


def on_run_began(draft: Draft, uid: str, beginning: RunStartDetails) -> None:
    """Record that the processes of a run have started. Idempotent."""
    found = draft.find_run(uid)
    if found is None:
        return
    job, run = found
    if run.has_ended or job.cancelling:
        draft.actions.append(TerminateRun(uid))
    if run.has_ended or run.began_at is not None:
        return
    run = replace(
        run,
        began_at=beginning.at,
        restored=beginning.restored,
        restored_from=beginning.snapshot,
        cold_because=beginning.cold_because,
    )
    job = _count_saved_work(job, run) if beginning.restored else job
    job = draft.put(job.with_run(run))
    _add_start_events(draft, job, run, beginning)
    if job.phase is JobPhase.STARTING and all(run.began_at is not None for run in job.active_runs):
        protected = draft.now + protection_seconds(job.preemptions)
        draft.put(
            apply_transition(
                job,
                TransitionCause.BEGAN,
                "runs",
                protected_until=max(job.protected_until, protected),
                wanted_generation=None,
            )
        )


def on_run_ended(draft: Draft, uid: str, ending: RunEndDetails) -> None:
    """Record that nothing of a run is left. Idempotent."""
    found = draft.find_run(uid)
    if found is None or found[1].has_ended:
        return
    job, run = found
    run = replace(
        run, ended_at=ending.at, exit_code=ending.exit_code, signal=ending.signal, ending=_end_cause(job, ending)
    )
    job = draft.put(job.with_run(run))
    if job.description.id is not None:
        draft.reports.append(report_of_run_end(run, ending.words))
    apply_run_ends(draft, job, ending.words)


def report_of_run_end(run: Run, why: str) -> Ended:
    """Return the report of a run's end."""
    failed = run.ending not in {LOST, CANCELLED, PREEMPTED, WITH_GANG} and run.exit_code != 0
    ran = run.ended_at - run.began_at if run.ended_at is not None and run.began_at is not None else None
    return Ended(run.uid, why, failed, ran)


def _end_cause(job: Job, ending: RunEndDetails) -> str | None:
    """Return what ended the run; None if the run ended by itself."""
    if ending.lost or (ending.signal in _OF_A_KILLED_CRIU and _is_being_checkpointed(job)):
        return LOST
    if ending.failure is not None:
        return ending.failure
    if job.cancelling:
        return CANCELLED
    if job.leaving is not None and job.leaving.signal is None:
        return PREEMPTED
    return WITH_GANG if job.has_failed_replica and ending.exit_code != 0 else None


def _is_being_checkpointed(job: Job) -> bool:
    return job.snapshot_signal is not None or is_awaiting_release(job)


def is_awaiting_release(job: Job) -> bool:
    """Whether the job is being evicted and the coordinator has not released the hold yet."""
    return job.leaving is not None and job.leaving.signal is not None


def apply_run_ends(draft: Draft, job: Job, words: str) -> None:
    """Apply the transition that follows from ended runs; `words` describe how the last run ended."""
    if is_awaiting_release(job):
        return
    if job.active_runs:
        if job.has_failed_replica:
            draft.actions += [TerminateRun(run.uid) for run in job.active_runs]
    elif len(job.completed_replicas) == job.description.replicas:
        _end_job(draft, job, TransitionCause.SUCCEEDED, "ended well")
    elif job.cancelling:
        _end_job(draft, job, TransitionCause.CANCELLED, "cancelled")
    elif job.leaving is not None:
        _requeue_or_suspend(draft, job, job.leaving.cause)
    elif any(run.failed for run in job.runs_of_latest_attempt):
        _end_job(draft, job, TransitionCause.FAILED, _describe_decisive_end(job))
    elif sum(run.ending == LOST for run in job.runs) >= MOST_LOSSES:
        _end_job(draft, job, TransitionCause.FAILED, f"its processes vanished {MOST_LOSSES} times")
    else:
        _close_snapshot_signal(draft, job)
        job = draft.put(apply_transition(job, TransitionCause.REQUEUED, words, snapshot_signal=None))
        draft.add_event(job, "Lost", f"{job.description.name} is queued again: {words}", warning=True)


def cancel_eviction(draft: Draft, job: Job, why: str) -> None:
    """Cancel the job's eviction, and process events that were deferred while the eviction was held."""
    job = draft.put(apply_transition(job, TransitionCause.KEPT, why, leaving=None))
    draft.add_event(job, "Kept", f"{job.description.name} keeps its place: {why}")
    if job.cancelling:
        draft.actions += [TerminateRun(run.uid) for run in job.active_runs]
    if len(job.active_runs) < len(job.runs_of_latest_attempt):
        apply_run_ends(draft, job, _describe_decisive_end(job))


def _describe_decisive_end(job: Job) -> str:
    run = _decisive_run(job)
    if run is None:
        return "nothing of it is left"
    return RunEndDetails(run.ended_at or 0.0, run.exit_code, run.signal, run.ending, lost=run.ending == LOST).words


def _decisive_run(job: Job) -> Run | None:
    """Return the run whose end decides the job's: the first that failed, or the last that ended."""
    ended = sorted(
        (run for run in job.runs_of_latest_attempt if run.ended_at is not None), key=lambda run: run.ended_at or 0.0
    )
    return next((run for run in ended if run.failed), ended[-1] if ended else None)


def _end_job(draft: Draft, job: Job, cause: TransitionCause, words: str) -> None:
    last = _decisive_run(job)
    _close_snapshot_signal(draft, job)
    job = apply_transition(job, cause, words, ended_at=draft.now, leaving=None, snapshot_signal=None, cancelling=False)
    if last is not None:
        job = replace(job, exit_code=last.exit_code, signal=last.signal)
    draft.put(job)
    draft.add_event(job, job.phase.value, f"{job.description.name}: {words}", warning=cause is TransitionCause.FAILED)


def _requeue_or_suspend(draft: Draft, job: Job, cause: TransitionCause) -> None:
    why = (
        "preempted, waits for its place"
        if cause is TransitionCause.REQUEUED
        else "stopped with a snapshot, restore it to continue"
    )
    _close_snapshot_signal(draft, job)
    preemptions = job.preemptions + (1 if cause is TransitionCause.REQUEUED else 0)
    job = draft.put(
        apply_transition(job, cause, why, leaving=None, snapshot_signal=None, refusals=0, preemptions=preemptions)
    )
    draft.add_event(job, job.phase.value, f"{job.description.name}: {why}")


def _close_snapshot_signal(draft: Draft, job: Job) -> None:
    """Close the signal of a snapshot of the running job: its processes are gone, so there is nothing to wait for."""
    signal = draft.find_open_signal(job.snapshot_signal) if job.snapshot_signal is not None else None
    if signal is not None:
        draft.close_signal(signal)


def _count_saved_work(job: Job, run: Run) -> Job:
    """Count the running time that the snapshot restored as saved, once."""
    for earlier in reversed(job.runs):
        if earlier.index == run.index and earlier.preserved_seconds > 0 and job.wanted_generation is None:
            saved = job.work_saved_seconds + earlier.preserved_seconds
            return replace(job.with_run(replace(earlier, preserved_seconds=0.0)), work_saved_seconds=saved)
    return job


def on_run_inspected(draft: Draft, uid: str, obstacle: RunObstacle | None) -> None:
    """Record what a checkpoint of a run would fail for; None: nothing was found. Each new reason is an event."""
    found = draft.find_run(uid)
    if found is None or found[1].has_ended or found[1].obstacle == obstacle:
        return
    job, run = found
    job = draft.put(job.with_run(replace(run, obstacle=obstacle)))
    name = _name_of_run(job, run)
    if obstacle is None:
        draft.add_event(job, "Checkpointable", f"{name}: what a checkpoint would have failed for is gone")
    elif run.obstacle is None or run.obstacle.reason != obstacle.reason:
        draft.add_event(job, "NotCheckpointable", f"{name}: a checkpoint would fail: {obstacle.message}", warning=True)


def _name_of_run(job: Job, run: Run) -> str:
    return job.description.name if job.description.replicas == 1 else f"{job.description.name}-{run.index}"


def _add_start_events(draft: Draft, job: Job, run: Run, beginning: RunStartDetails) -> None:
    name = _name_of_run(job, run)
    if beginning.restored:
        draft.add_event(job, "Restored", f"{name} continues from {beginning.snapshot or 'its snapshot'}")
    elif beginning.cold_because is not None:
        draft.add_event(job, "ColdStart", f"{name} starts anew: {beginning.cold_because}", warning=True)
    else:
        draft.add_event(job, "Started", f"{name} runs")
    for note in beginning.notes:
        draft.add_event(job, "Limited", f"{name}: {note}", warning=True)
