"""Selection of the victims of one job; rejects a selection that would be reversed at once."""

from __future__ import annotations

from collections.abc import Sequence

from cedana_sched.local.scheduler.candidates import candidates_for
from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.quota_preemption import quota_victims
from cedana_sched.local.scheduler.scheduling_types import AdmittedJob, PendingJob, Preemption
from cedana_sched.local.scheduler.share_preemption import share_victims


def victims_for(job: PendingJob, admitted: Sequence[AdmittedJob], ledger: Ledger) -> list[Preemption]:
    """Return a minimal set of `admitted` to preempt so that `job` fits; empty if the rules allow none.

    Simulates on the ledger, and restores it. Precondition: all of `admitted` can be preempted now.
    """
    preemptions = _choose(job, admitted, ledger)
    if preemptions and _would_be_reversed(job, preemptions, admitted, ledger):
        return []
    return preemptions


def _choose(job: PendingJob, admitted: Sequence[AdmittedJob], ledger: Ledger) -> list[Preemption]:
    lacking = ledger.lacking(job.group, job.request)
    candidates = candidates_for(job, admitted, ledger, lacking)
    if not candidates:
        return []
    if ledger.cohort.share_strategies:
        return share_victims(job, candidates, ledger)
    return quota_victims(job, candidates, ledger, lacking)


def _would_be_reversed(
    job: PendingJob, preemptions: list[Preemption], admitted: Sequence[AdmittedJob], ledger: Ledger
) -> bool:
    """Whether a requeued victim would in turn preempt `job`, so that both would preempt each other forever."""
    gone = {p.victim for p in preemptions}
    victims = [a for a in admitted if a.uid in gone]
    for victim in victims:
        ledger.remove(victim.group, victim.request)
    ledger.add(job.group, job.request)
    after = [a for a in admitted if a.uid not in gone] + [_as_admitted(job)]
    reversed_ = any(_would_preempt_back(victim, job.uid, after, ledger) for victim in victims)
    ledger.remove(job.group, job.request)
    for victim in victims:
        ledger.add(victim.group, victim.request)
    return reversed_


def _would_preempt_back(victim: AdmittedJob, preemptor: str, after: list[AdmittedJob], ledger: Ledger) -> bool:
    waiting = as_pending(victim)
    if ledger.fits(waiting.group, waiting.request):
        return False
    return any(p.victim == preemptor for p in _choose(waiting, after, ledger))


def as_pending(job: AdmittedJob) -> PendingJob:
    """Return the job as pending after a preemption; it keeps its position in the queue."""
    return PendingJob(
        uid=job.uid,
        group=job.group,
        request=job.request,
        priority=job.priority,
        submitted_at=job.submitted_at,
        name=job.name,
    )


def _as_admitted(job: PendingJob) -> AdmittedJob:
    newest = float("inf")
    return AdmittedJob(
        uid=job.uid,
        group=job.group,
        request=job.request,
        priority=job.priority,
        submitted_at=job.submitted_at,
        admitted_at=newest,
    )
