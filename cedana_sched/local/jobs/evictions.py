"""Evictions of jobs: signals to the coordinator, their cancellation, and the effect of a release."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled
from cedana_sched.local.jobs.book import Draft, TerminateRun
from cedana_sched.local.jobs.job import PREEMPTED, Cause, Job, JobPhase, Leaving, Run, step
from cedana_sched.local.jobs.rules import awaits_release, conclude, keeps_its_place
from cedana_sched.local.scheduler.protection import backoff_seconds
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure
from cedana_sched.model.preemption import AfterCommit, Release, Signal, Verdict, Victim

ADAPTER = "embedded"
USER_REQUEST = "UserRequest"
"""The reason of an eviction or snapshot that a user requested."""


def preempt(
    draft: Draft,
    victims: Sequence[Job],
    *,
    node: str,
    signal_uid: str,
    reason: str,
    why: str,
    preemptor: Job | None = None,
    cause: Cause = Cause.REQUEUED,
) -> None:
    """Evict jobs: one signal for those that are opted in, a plain termination for the others."""
    held = [job for job in victims if job.description.id is not None]
    for job in victims:
        leaving = Leaving(
            cause=cause,
            preemptor=preemptor.uid if preemptor else None,
            signal=signal_uid if job in held else None,
        )
        draft.put(step(job, Cause.PREEMPTED, why, leaving=leaving))
        draft.tell(job, "Preempted", f"{job.description.name} must leave its place: {why}")
        if job not in held:
            draft.actions += [TerminateRun(run.uid) for run in job.current]
    if held:
        name = preemptor.description.name if preemptor else None
        policy = OnCheckpointFailure.KEEP_RUNNING if cause is Cause.STOPPED else None
        send(draft, held, node=node, uid=signal_uid, reason=reason, preemptor=name, on_failure=policy)


def send(
    draft: Draft,
    jobs: Sequence[Job],
    *,
    node: str,
    uid: str,
    reason: str,
    preemptor: str | None = None,
    after_commit: AfterCommit = AfterCommit.STOP,
    on_failure: OnCheckpointFailure | None = None,
) -> None:
    """Report a preemption to the coordinator; the journal keeps the signal until its release."""
    victims = [_victim(job, run, node, on_failure) for job in jobs for run in job.current]
    signal = Signal(
        uid=uid,
        adapter=ADAPTER,
        victims=tuple(victims),
        reason=reason,
        observed_at=draft.now,
        preemptor=preemptor,
        after_commit=after_commit,
    )
    draft.signals[uid] = signal
    draft.reports.append(Preempted(signal))


def _victim(job: Job, run: Run, node: str, on_failure: OnCheckpointFailure | None) -> Victim:
    identity = job.description.identity(run.index)
    if identity is None:
        raise ValueError(f"job {job.uid} has no checkpoint id")
    policy: CheckpointPolicy = job.description.policy
    if on_failure is not None:
        policy = policy.model_copy(update={"on_checkpoint_failure": on_failure})
    gang = job.uid if job.description.replicas > 1 else None
    return Victim(job.workload(run, node), identity, policy, gang, run.began_at)


def call_off(draft: Draft, jobs: Sequence[Job], why: str) -> None:
    """Cancel preemptions whose place is no longer needed: a signal is cancelled once all of its victims may stay."""
    unneeded = {job.uid for job in jobs}
    for uid in sorted({job.leaving.signal for job in jobs if job.leaving and job.leaving.signal}):
        held = [j for j in draft.all_jobs() if j.leaving is not None and j.leaving.signal == uid]
        if not unneeded.issuperset(job.uid for job in held):
            continue
        for job in held:
            if job.leaving is not None and not job.leaving.cancelled:
                draft.put(replace(job, leaving=replace(job.leaving, cancelled=True)))
        draft.reports.append(PreemptionCancelled(uid, why))


def released(draft: Draft, release: Release) -> None:
    """Apply the coordinator's release of a held preemption. Idempotent."""
    signal = draft.unsettled(release.signal_uid)
    if signal is None:
        return
    draft.settle(signal)
    for job in [j for j in draft.all_jobs() if j.leaving is not None and j.leaving.signal == signal.uid]:
        _release(draft, job, signal, release)


def _release(draft: Draft, job: Job, signal: Signal, release: Release) -> None:
    runs = [run for run in job.runs if run.uid in release.verdicts]
    verdicts = {release.verdicts[run.uid] for run in runs}
    why = next((release.reasons[run.uid] for run in runs if run.uid in release.reasons), "")
    for run in runs:
        if release.verdicts[run.uid] is Verdict.COMMITTED:
            job = _stopped(draft, job, run, signal)
    if job.leaving is not None:
        # a job evicted without a snapshot cannot be suspended, so it is requeued
        cause = Cause.REQUEUED if Verdict.EVICT in verdicts else job.leaving.cause
        job = draft.put(replace(job, leaving=replace(job.leaving, signal=None, cause=cause)))
    if verdicts & {Verdict.COMMITTED, Verdict.EVICT}:
        if Verdict.EVICT in verdicts:
            draft.tell(
                job, "EvictedWithoutSnapshot", f"{job.description.name} leaves without a snapshot: {why}", warning=True
            )
        draft.actions += [TerminateRun(run.uid) for run in job.current]
        conclude(draft, job, why or PREEMPTED)
    elif Verdict.KEEP_RUNNING in verdicts:
        refusals = job.refusals + 1
        protected = draft.now + backoff_seconds(refusals)
        keeps_its_place(draft, replace(job, refusals=refusals, protected_until=protected), why)
    else:
        keeps_its_place(draft, job, why or "its place is not needed any more")


def _stopped(draft: Draft, job: Job, run: Run, signal: Signal) -> Job:
    """Record that a run is dead and its snapshot committed."""
    if not run.over:
        draft.reports.append(Ended(run.uid, PREEMPTED))
    preserved = max(0.0, signal.observed_at - (run.began_at or signal.observed_at))
    ended_at = run.ended_at if run.ended_at is not None else draft.now
    return draft.put(
        job.with_run(replace(run, ended_at=ended_at, exit_code=None, ending=PREEMPTED, preserved_seconds=preserved))
    )


def snapshot_settled(draft: Draft, signal_uid: str, *, committed: bool) -> None:
    """Record that a snapshot of a job that keeps running was committed or failed."""
    signal = draft.unsettled(signal_uid)
    if signal is None:
        return
    draft.settle(signal)
    for job in [j for j in draft.all_jobs() if j.snapshot_signal == signal_uid]:
        for run in job.current if committed else ():
            preserved = max(0.0, signal.observed_at - (run.began_at or signal.observed_at))
            job = job.with_run(replace(run, preserved_seconds=preserved))  # noqa: PLW2901  # accumulates the job's runs
        draft.put(replace(job, snapshot_signal=None))


def is_held(job: Job) -> bool:
    """Whether the coordinator holds the job's eviction and has not released the hold yet."""
    return job.phase is JobPhase.PREEMPTING and awaits_release(job)
