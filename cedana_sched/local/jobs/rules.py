"""The effect of each event on a job: synchronous rules on a draft, without I/O or a clock.

A run ends only by a report of the runtime or the coordinator; until then its job keeps its place. While the
coordinator holds a job, the job's end waits for the release, whose verdict distinguishes a preemption from another end.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.local.jobs.book import Draft, StartRun, TerminateRun
from cedana_sched.local.jobs.job import (
    CANCELLED,
    LOST,
    PREEMPTED,
    WITH_GANG,
    Cause,
    Job,
    JobDescription,
    JobPhase,
    Run,
    step,
)
from cedana_sched.local.scheduler.protection import protection_seconds
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import WorkloadRef

_OF_A_KILLED_CRIU = frozenset({"SIGTRAP", "SIGSEGV"})
"""Signals that end a program whose dump was killed midway, not a failure of the program; see `snapshot.aftermath`."""
MOST_LOSSES = 5
"""Number of lost runs after which the job fails instead of being requeued."""


class Beginning(msgspec.Struct, frozen=True):
    """The start of a run. `snapshot` and `cold_because` are None if the coordinator did not report them."""

    at: float
    restored: bool = False
    snapshot: str | None = None
    cold_because: str | None = None
    notes: tuple[str, ...] = ()


class Ending(msgspec.Struct, frozen=True):
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


def submitted(draft: Draft, description: JobDescription) -> Job:
    """Queue a new job.

    Raises:
        UsageError: another live job has the checkpoint id.
    """
    require_free_id(draft, description)
    job = draft.put(Job(description=description, why="submitted"))
    draft.tell(job, "Submitted", f"{description.name} was submitted to group {description.group}")
    return job


def require_free_id(draft: Draft, description: JobDescription) -> None:
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


def admitted(draft: Draft, job: Job, node: str) -> None:
    """Admit a job: add a run for each replica that has not completed its work."""
    description, first = job.description, len(job.runs)
    indexes = [index for index in range(description.replicas) if index not in job.finished]
    why, attempts = "has its place, is being started", job.attempts + 1
    job = step(job, Cause.ADMITTED, why, admitted_at=draft.now, attempts=attempts, claims=False)
    for number, index in enumerate(indexes, start=first):
        job = job.with_run(Run(uid=f"{job.uid}-r{number}", index=index, attempt=attempts))
    draft.put(job)
    draft.tell(job, "Admitted", f"{description.name} has its place in group {description.group}")
    begin_again(draft, job, node)


def begin_again(draft: Draft, job: Job, node: str) -> None:
    """Start all runs that have not started. Idempotent, so it is repeated after a restart of the engine."""
    for run in job.current:
        if run.began_at is None:
            workload = job.workload(run, node)
            report = starting(job, run, workload)
            if report is None:
                draft.actions.append(StartRun(workload))
            else:
                draft.reports.append(report)


def starting(job: Job, run: Run, workload: WorkloadRef) -> Starting | None:
    """Return the report on which the coordinator starts a run; None for a job that is not opted in."""
    identity = job.description.identity(run.index)
    if identity is None:
        return None
    wanted = SnapshotRef(identity, job.wanted_generation) if job.wanted_generation is not None else None
    return Starting(workload, identity, job.description.policy, wanted)


def run_began(draft: Draft, uid: str, beginning: Beginning) -> None:
    """Record that the processes of a run have started. Idempotent."""
    found = draft.run(uid)
    if found is None:
        return
    job, run = found
    if run.over or job.cancelling:
        draft.actions.append(TerminateRun(uid))
    if run.over or run.began_at is not None:
        return
    run = replace(
        run,
        began_at=beginning.at,
        restored=beginning.restored,
        restored_from=beginning.snapshot,
        cold_because=beginning.cold_because,
    )
    job = _account_for(job, run) if beginning.restored else job
    job = draft.put(job.with_run(run))
    _tell_beginning(draft, job, run, beginning)
    if job.phase is JobPhase.STARTING and all(run.began_at is not None for run in job.current):
        protected = draft.now + protection_seconds(job.preemptions)
        draft.put(
            step(job, Cause.BEGAN, "runs", protected_until=max(job.protected_until, protected), wanted_generation=None)
        )


def run_ended(draft: Draft, uid: str, ending: Ending) -> None:
    """Record that nothing of a run is left. Idempotent."""
    found = draft.run(uid)
    if found is None or found[1].over:
        return
    job, run = found
    run = replace(
        run, ended_at=ending.at, exit_code=ending.exit_code, signal=ending.signal, ending=_kind_of_end(job, ending)
    )
    job = draft.put(job.with_run(run))
    if job.description.id is not None:
        draft.reports.append(ended(run, ending.words))
    conclude(draft, job, ending.words)


def ended(run: Run, why: str) -> Ended:
    """Return the report of a run's end."""
    failed = run.ending not in {LOST, CANCELLED, PREEMPTED, WITH_GANG} and run.exit_code != 0
    ran = run.ended_at - run.began_at if run.ended_at is not None and run.began_at is not None else None
    return Ended(run.uid, why, failed, ran)


def _kind_of_end(job: Job, ending: Ending) -> str | None:
    """Return what ended the run; None if the run ended by itself."""
    if ending.lost or (ending.signal in _OF_A_KILLED_CRIU and _is_being_saved(job)):
        return LOST
    if ending.failure is not None:
        return ending.failure
    if job.cancelling:
        return CANCELLED
    if job.leaving is not None and job.leaving.signal is None:
        return PREEMPTED
    return WITH_GANG if job.broken and ending.exit_code != 0 else None


def _is_being_saved(job: Job) -> bool:
    return job.snapshot_signal is not None or awaits_release(job)


def awaits_release(job: Job) -> bool:
    """Whether the job is being evicted and the coordinator has not released the hold yet."""
    return job.leaving is not None and job.leaving.signal is not None


def conclude(draft: Draft, job: Job, words: str) -> None:
    """Apply the transition that follows from ended runs; `words` describe how the last run ended."""
    if awaits_release(job):
        return
    if job.current:
        if job.broken:
            draft.actions += [TerminateRun(run.uid) for run in job.current]
    elif len(job.finished) == job.description.replicas:
        _finish(draft, job, Cause.SUCCEEDED, "ended well")
    elif job.cancelling:
        _finish(draft, job, Cause.CANCELLED, "cancelled")
    elif job.leaving is not None:
        _leave(draft, job, job.leaving.cause)
    elif any(run.failed for run in job.attempt):
        _finish(draft, job, Cause.FAILED, _last_words(job))
    elif sum(run.ending == LOST for run in job.runs) >= MOST_LOSSES:
        _finish(draft, job, Cause.FAILED, f"its processes vanished {MOST_LOSSES} times")
    else:
        _forget_snapshot(draft, job)
        job = draft.put(step(job, Cause.REQUEUED, words, snapshot_signal=None))
        draft.tell(job, "Lost", f"{job.description.name} is queued again: {words}", warning=True)


def keeps_its_place(draft: Draft, job: Job, why: str) -> None:
    """Cancel the job's eviction, and process events that were deferred while the eviction was held."""
    job = draft.put(step(job, Cause.KEPT, why, leaving=None))
    draft.tell(job, "Kept", f"{job.description.name} keeps its place: {why}")
    if job.cancelling:
        draft.actions += [TerminateRun(run.uid) for run in job.current]
    if len(job.current) < len(job.attempt):
        conclude(draft, job, _last_words(job))


def _last_words(job: Job) -> str:
    run = _decisive(job)
    if run is None:
        return "nothing of it is left"
    return Ending(run.ended_at or 0.0, run.exit_code, run.signal, run.ending, lost=run.ending == LOST).words


def _decisive(job: Job) -> Run | None:
    """Return the run whose end decides the job's: the first that failed, or the last that ended."""
    ended = sorted((run for run in job.attempt if run.ended_at is not None), key=lambda run: run.ended_at or 0.0)
    return next((run for run in ended if run.failed), ended[-1] if ended else None)


def _finish(draft: Draft, job: Job, cause: Cause, words: str) -> None:
    last = _decisive(job)
    _forget_snapshot(draft, job)
    job = step(job, cause, words, ended_at=draft.now, leaving=None, snapshot_signal=None, cancelling=False)
    if last is not None:
        job = replace(job, exit_code=last.exit_code, signal=last.signal)
    draft.put(job)
    draft.tell(job, job.phase.value, f"{job.description.name}: {words}", warning=cause is Cause.FAILED)


def _leave(draft: Draft, job: Job, cause: Cause) -> None:
    why = (
        "preempted, waits for its place"
        if cause is Cause.REQUEUED
        else "stopped with a snapshot, restore it to continue"
    )
    _forget_snapshot(draft, job)
    preemptions = job.preemptions + (1 if cause is Cause.REQUEUED else 0)
    job = draft.put(step(job, cause, why, leaving=None, snapshot_signal=None, refusals=0, preemptions=preemptions))
    draft.tell(job, job.phase.value, f"{job.description.name}: {why}")


def _forget_snapshot(draft: Draft, job: Job) -> None:
    """Close the signal of a snapshot of the running job: its processes are gone, so there is nothing to wait for."""
    signal = draft.unsettled(job.snapshot_signal) if job.snapshot_signal is not None else None
    if signal is not None:
        draft.settle(signal)


def _account_for(job: Job, run: Run) -> Job:
    """Count the running time that the snapshot restored as saved, once."""
    for earlier in reversed(job.runs):
        if earlier.index == run.index and earlier.preserved_seconds > 0 and job.wanted_generation is None:
            saved = job.work_saved_seconds + earlier.preserved_seconds
            return replace(job.with_run(replace(earlier, preserved_seconds=0.0)), work_saved_seconds=saved)
    return job


def _tell_beginning(draft: Draft, job: Job, run: Run, beginning: Beginning) -> None:
    name = job.description.name if job.description.replicas == 1 else f"{job.description.name}-{run.index}"
    if beginning.restored:
        draft.tell(job, "Restored", f"{name} continues from {beginning.snapshot or 'its snapshot'}")
    elif beginning.cold_because is not None:
        draft.tell(job, "ColdStart", f"{name} starts anew: {beginning.cold_because}", warning=True)
    else:
        draft.tell(job, "Started", f"{name} runs")
    for note in beginning.notes:
        draft.tell(job, "Limited", f"{name}: {note}", warning=True)
