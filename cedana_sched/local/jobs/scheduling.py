"""Runs a scheduling cycle after every event, and applies its decisions to the jobs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from cedana_sched.local.jobs.evictions import cancel_preemptions, preempt
from cedana_sched.local.jobs.job import PLACED_PHASES, Job, JobPhase
from cedana_sched.local.jobs.job_event_rules import admit_job
from cedana_sched.local.jobs.loop_state import Draft
from cedana_sched.local.scheduler.decide import decide
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    ClusterState,
    Cohort,
    Decisions,
    Eviction,
    PendingJob,
    Preemption,
)


def run_scheduling_cycle(draft: Draft, cohort: Cohort, *, node: str, new_uid: Callable[[], str]) -> float | None:
    """Run a scheduling cycle on the draft; return when the next one is due (epoch seconds), or None."""
    decisions = decide(cluster_state(draft, cohort), draft.now)
    cancel_preemptions(draft, [draft.job(uid) for uid in decisions.unneeded], "the place is not needed any more")
    for uid in decisions.admissions:
        admit_job(draft, draft.job(uid), node)
    for preemptor, preemptions in _preemptions_by_preemptor(decisions).items():
        _apply_preemptions(draft, draft.job(preemptor), preemptions, node, f"sig-{new_uid()}")
    _explain_waits(draft, decisions)
    return decisions.wake_at


def cluster_state(draft: Draft, cohort: Cohort) -> ClusterState:
    """Return the jobs as input of the scheduler."""
    jobs = list(draft.all_jobs())
    return ClusterState(
        cohort,
        tuple(_pending_job(job) for job in jobs if job.phase is JobPhase.QUEUED),
        tuple(_admitted_job(job) for job in jobs if job.phase in PLACED_PHASES),
    )


def _pending_job(job: Job) -> PendingJob:
    description = job.description
    return PendingJob(
        uid=job.uid,
        group=description.group,
        request=job.gang_request,
        priority=description.priority,
        submitted_at=description.submitted_at,
        name=description.name,
        claims=job.claims,
    )


def _admitted_job(job: Job) -> AdmittedJob:
    description = job.description
    return AdmittedJob(
        uid=job.uid,
        group=description.group,
        request=job.gang_request,
        priority=description.priority,
        submitted_at=description.submitted_at,
        admitted_at=job.admitted_at or 0.0,
        eviction=_ongoing_eviction_of(job),
        preemptible=job.phase is JobPhase.RUNNING,
        protected_until=job.protected_until,
        name=description.name,
    )


def _ongoing_eviction_of(job: Job) -> Eviction | None:
    """Return a job's eviction; None if it was cancelled, though the coordinator may still hold it for an instant."""
    if job.cancelling or (job.has_failed_replica and job.leaving is None):
        return Eviction(None, revocable=False)
    if job.leaving is None or job.leaving.cancelled:
        return None
    return Eviction(job.leaving.preemptor, revocable=job.leaving.signal is not None)


def _preemptions_by_preemptor(decisions: Decisions) -> dict[str, list[Preemption]]:
    found: dict[str, list[Preemption]] = {}
    for preemption in decisions.preemptions:
        found.setdefault(preemption.preemptor, []).append(preemption)
    return found


def _apply_preemptions(draft: Draft, preemptor: Job, preemptions: list[Preemption], node: str, signal_uid: str) -> None:
    victims = [draft.job(preemption.victim) for preemption in preemptions]
    reason = preemptions[0].reason
    why = f"preempted for {preemptor.description.name} by {reason.words}"
    preempt(draft, victims, node=node, signal_uid=signal_uid, reason=reason.value, why=why, preemptor=preemptor)


def _explain_waits(draft: Draft, decisions: Decisions) -> None:
    """Set on each queued job why it waits, and whether a place is being freed for it."""
    for job in list(draft.all_jobs()):
        if job.phase is not JobPhase.QUEUED:
            continue
        why = decisions.waiting.get(job.uid) or decisions.unschedulable.get(job.uid) or job.why
        claims = job.uid in decisions.claims
        if (why, claims) != (job.why, job.claims):
            draft.put(replace(job, why=why, claims=claims))
