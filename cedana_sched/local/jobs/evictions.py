"""Evictions of jobs: signals to the coordinator, their cancellation, and the effect of a release."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled
from cedana_sched.local.jobs.job import PREEMPTED, Job, JobEviction, JobPhase, Run, TransitionCause, apply_transition
from cedana_sched.local.jobs.job_event_rules import apply_run_ends, cancel_eviction, is_awaiting_release
from cedana_sched.local.jobs.loop_state import Draft, TerminateRun
from cedana_sched.local.scheduler.preemption_backoff import backoff_seconds
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
    cause: TransitionCause = TransitionCause.REQUEUED,
) -> None:
    """Evict jobs: one signal for those that are opted in, a plain termination for the others."""
    held = [job for job in victims if job.description.id is not None]
    for job in victims:
        leaving = JobEviction(
            cause=cause,
            preemptor=preemptor.uid if preemptor else None,
            signal=signal_uid if job in held else None,
        )
        draft.put(apply_transition(job, TransitionCause.PREEMPTED, why, leaving=leaving))
        draft.add_event(job, "Preempted", f"{job.description.name} must leave its place: {why}")
        if job not in held:
            draft.actions += [TerminateRun(run.uid) for run in job.active_runs]
    if held:
        name = preemptor.description.name if preemptor else None
        policy = OnCheckpointFailure.KEEP_RUNNING if cause is TransitionCause.STOPPED else None
        report_preemption(draft, held, node=node, uid=signal_uid, reason=reason, preemptor=name, on_failure=policy)


def report_preemption(
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
    victims = [victim_of_run(job, run, node, on_failure) for job in jobs for run in job.active_runs]
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


def victim_of_run(job: Job, run: Run, node: str, on_failure: OnCheckpointFailure | None = None) -> Victim:
    """Return a run as a victim; `on_failure` overrides the job's policy.

    Raises:
        ValueError: the job is not opted in.
    """
    identity = job.description.identity(run.index)
    if identity is None:
        raise ValueError(f"job {job.uid} has no checkpoint id")
    policy: CheckpointPolicy = job.description.policy
    if on_failure is not None:
        policy = policy.model_copy(update={"on_checkpoint_failure": on_failure})
    gang = job.uid if job.description.replicas > 1 else None
    return Victim(job.workload(run, node), identity, policy, gang, run.began_at)


def cancel_preemptions(draft: Draft, jobs: Sequence[Job], why: str) -> None:
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


def apply_release(draft: Draft, release: Release) -> None:
    """Apply the coordinator's release of a held preemption. Idempotent."""
    signal = draft.find_open_signal(release.signal_uid)
    if signal is None:
        return
    draft.close_signal(signal)
    for job in [j for j in draft.all_jobs() if j.leaving is not None and j.leaving.signal == signal.uid]:
        _apply_verdicts(draft, job, signal, release)


def _apply_verdicts(draft: Draft, job: Job, signal: Signal, release: Release) -> None:
    runs = [run for run in job.runs if run.uid in release.verdicts]
    verdicts = {release.verdicts[run.uid] for run in runs}
    why = next((release.reasons[run.uid] for run in runs if run.uid in release.reasons), "")
    for run in runs:
        if release.verdicts[run.uid] is Verdict.COMMITTED:
            job = _record_preempted_run(draft, job, run, signal)
    if job.leaving is not None:
        # a job evicted without a snapshot cannot be suspended, so it is requeued
        cause = TransitionCause.REQUEUED if Verdict.EVICT in verdicts else job.leaving.cause
        job = draft.put(replace(job, leaving=replace(job.leaving, signal=None, cause=cause)))
    if verdicts & {Verdict.COMMITTED, Verdict.EVICT}:
        if Verdict.EVICT in verdicts:
            draft.add_event(
                job, "EvictedWithoutSnapshot", f"{job.description.name} leaves without a snapshot: {why}", warning=True
            )
        draft.actions += [TerminateRun(run.uid) for run in job.active_runs]
        apply_run_ends(draft, job, why or PREEMPTED)
    elif Verdict.KEEP_RUNNING in verdicts:
        refusals = job.refusals + 1
        protected = draft.now + backoff_seconds(refusals)
        cancel_eviction(draft, replace(job, refusals=refusals, protected_until=protected), why)
    else:
        cancel_eviction(draft, job, why or "its place is not needed any more")


def _record_preempted_run(draft: Draft, job: Job, run: Run, signal: Signal) -> Job:
    """Record that a run is dead and its snapshot committed."""
    if not run.has_ended:
        draft.reports.append(Ended(run.uid, PREEMPTED))
    preserved = max(0.0, signal.observed_at - (run.began_at or signal.observed_at))
    ended_at = run.ended_at if run.ended_at is not None else draft.now
    return draft.put(
        job.with_run(replace(run, ended_at=ended_at, exit_code=None, ending=PREEMPTED, preserved_seconds=preserved))
    )


def on_snapshot_terminal(draft: Draft, signal_uid: str, *, committed: bool) -> None:
    """Record that a snapshot of a job that keeps running was committed or failed."""
    signal = draft.find_open_signal(signal_uid)
    if signal is None:
        return
    draft.close_signal(signal)
    for job in [j for j in draft.all_jobs() if j.snapshot_signal == signal_uid]:
        for run in job.active_runs if committed else ():
            preserved = max(0.0, signal.observed_at - (run.began_at or signal.observed_at))
            job = job.with_run(replace(run, preserved_seconds=preserved))  # noqa: PLW2901  # accumulates the job's runs
        draft.put(replace(job, snapshot_signal=None))


def is_held(job: Job) -> bool:
    """Whether the coordinator holds the job's eviction and has not released the hold yet."""
    return job.phase is JobPhase.PREEMPTING and is_awaiting_release(job)
