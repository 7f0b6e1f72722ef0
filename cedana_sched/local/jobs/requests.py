"""Requests of users on a job: preempt, checkpoint, restore, cancel. An invalid request fails with a named reason."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.local.jobs.evictions import USER_REQUEST, cancel_preemptions, is_held, preempt, report_preemption
from cedana_sched.local.jobs.job import LIVE_PHASES, Job, JobPhase, TransitionCause, apply_transition
from cedana_sched.local.jobs.job_event_rules import require_unused_checkpoint_id
from cedana_sched.local.jobs.loop_state import Draft, TerminateRun
from cedana_sched.model.errors import RefusedError, UsageError
from cedana_sched.model.preemption import INTERVAL, AfterCommit


def preempt_now(draft: Draft, job: Job, *, node: str, signal_uid: str) -> None:
    """Preempt the job as the scheduler would; the job is requeued.

    Raises:
        RefusedError: the job does not run.
    """
    _require_running(job)
    why = "preempted on request"
    preempt(draft, [job], node=node, signal_uid=signal_uid, reason=USER_REQUEST, why=why)


def checkpoint(draft: Draft, job: Job, *, node: str, signal_uid: str, leave_running: bool) -> None:
    """Take a snapshot; the job keeps running, or stops until a restore. If the snapshot fails, the job keeps running.

    Raises:
        RefusedError: the job does not run, or a snapshot of the job is already in flight.
        UsageError: the job has no checkpoint id.
    """
    _require_running(job)
    name = job.description.name
    if job.description.id is None:
        remedy = "submit it with --id, with CEDANA_CHECKPOINT in its environment, or in a group with optIn"
        raise UsageError("job", name, "has no checkpoint id", remedy=remedy)
    known = draft.find_open_signal(job.snapshot_signal) if job.snapshot_signal is not None else None
    if known is not None and known.reason != INTERVAL:
        raise RefusedError("job", name, "is being checkpointed already", remedy="wait until that is done")
    if not leave_running:
        why = "being stopped with a snapshot, on request"
        preempt(
            draft, [job], node=node, signal_uid=signal_uid, reason=USER_REQUEST, why=why, cause=TransitionCause.STOPPED
        )
        return
    draft.put(replace(job, snapshot_signal=signal_uid))
    report_preemption(
        draft, [job], node=node, uid=signal_uid, reason=USER_REQUEST, after_commit=AfterCommit.LEAVE_RUNNING
    )
    draft.add_event(job, "CheckpointRequested", f"a snapshot of {name} is being taken while it runs")


def restore(draft: Draft, job: Job, generation: int | None) -> None:
    """Requeue a stopped or ended job, to be restored from its newest snapshot or from that of `generation`.

    Raises:
        RefusedError: the job is live.
        UsageError: another live job has the id by now, or the job has no id to resolve `generation`.
    """
    name = job.description.name
    if job.phase in LIVE_PHASES - {JobPhase.SUSPENDED}:
        remedy = "cancel it first, or checkpoint it without --leave-running"
        raise RefusedError("job", name, f"cannot be restored while it is {job.phase.value}", remedy=remedy)
    if generation is not None and job.description.id is None:
        raise UsageError("job", name, "has no checkpoint id", remedy="restore it without a generation: it begins anew")
    if generation is not None and generation < 1:
        raise UsageError("generation", generation, "is no generation", remedy="see 'cedana-sched snapshots list'")
    require_unused_checkpoint_id(draft, job.description)
    # a suspended job keeps its completed replicas; an ended job restarts all of its replicas
    void = job.void_attempts if job.phase is JobPhase.SUSPENDED else job.attempts
    changes = {
        "wanted_generation": generation,
        "void_attempts": void,
        "ended_at": None,
        "exit_code": None,
        "signal": None,
    }
    job = draft.put(
        apply_transition(job, TransitionCause.RESTORED, "restored on request, waits for its place", **changes)
    )
    draft.add_event(job, "RestoreRequested", f"{name} is queued to continue")


def cancel(draft: Draft, job: Job) -> None:
    """Cancel a job for good. Its runs are terminated; a held job ends as soon as the coordinator releases the hold.

    Raises:
        RefusedError: the job has ended already.
    """
    name = job.description.name
    if not job.live:
        raise RefusedError("job", name, f"has ended already: {job.phase.value}", remedy="nothing is left to cancel")
    draft.add_event(job, "CancelRequested", f"{name} is to be cancelled")
    if job.phase in {JobPhase.QUEUED, JobPhase.SUSPENDED}:
        draft.put(apply_transition(job, TransitionCause.CANCELLED, "cancelled", ended_at=draft.now, claims=False))
        return
    job = draft.put(replace(job, cancelling=True, why="being cancelled"))
    if is_held(job):
        cancel_preemptions(draft, [job], "the job is cancelled")
    else:
        draft.actions += [TerminateRun(run.uid) for run in job.active_runs if run.began_at is not None]


def _require_running(job: Job) -> None:
    if job.phase is not JobPhase.RUNNING or job.cancelling or job.has_failed_replica:
        state = "ending" if job.cancelling or job.has_failed_replica else job.phase.value
        raise RefusedError(
            "job", job.description.name, f"does not run, it is {state}", remedy="wait until it is Running"
        )
