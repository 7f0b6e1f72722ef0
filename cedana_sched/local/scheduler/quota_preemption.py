"""Victims by quota and priority alone: Kueue's classical preemption, on one flat cohort.

Source of the rules: Kueue v0.19, pkg/scheduler/preemption/classical_strategy.go.
"""

from __future__ import annotations

from cedana_sched.local.scheduler.candidates import Candidate, PreemptionVariant
from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.resources import Resource
from cedana_sched.local.scheduler.scheduling_types import PendingJob, Preemption


def quota_victims(
    job: PendingJob, candidates: list[Candidate], ledger: Ledger, lacking: frozenset[Resource]
) -> list[Preemption]:
    """Return victims that make place for `job`, without needless ones; empty if there are none. Restores the ledger."""
    for may_borrow in _borrowing_modes(job, candidates, ledger, lacking):
        taken = _take_until_fits(job, candidates, ledger, lacking, may_borrow=may_borrow)
        if taken:
            kept = drop_needless_victims(job, taken, ledger, may_borrow=may_borrow)
            return [candidate.preemption_for(job) for candidate in kept]
    return []


def _borrowing_modes(
    job: PendingJob, candidates: list[Candidate], ledger: Ledger, lacking: frozenset[Resource]
) -> tuple[bool, ...]:
    """Return the `may_borrow` of each attempt, in order: to avoid flapping, with borrowing fewer candidates qualify."""
    group = ledger.cohort.groups[job.group]
    others = any(c.variant is not PreemptionVariant.SAME_GROUP for c in candidates)
    may_not_borrow_then = not group.borrow_while_preempting
    if not others or (may_not_borrow_then and not ledger.below_nominal(job.group, lacking)):
        return (True,)
    if may_not_borrow_then and not any(c.variant is PreemptionVariant.RECLAIM for c in candidates):
        return (False, True)
    return (True, False)


def _take_until_fits(
    job: PendingJob, candidates: list[Candidate], ledger: Ledger, lacking: frozenset[Resource], *, may_borrow: bool
) -> list[Candidate]:
    taken: list[Candidate] = []
    fits = False
    for candidate in candidates:
        victim = candidate.job
        if candidate.variant is not PreemptionVariant.SAME_GROUP:
            if may_borrow and candidate.variant is PreemptionVariant.RECLAIM_WITHOUT_BORROWING:
                continue
            if not ledger.borrows(victim.group, lacking):
                continue
        ledger.remove(victim.group, victim.request)
        taken.append(candidate)
        if fits := ledger.fits(job.group, job.request, may_borrow=may_borrow):
            break
    for candidate in taken:
        ledger.add(candidate.job.group, candidate.job.request)
    return taken if fits else []


def drop_needless_victims(
    job: PendingJob, taken: list[Candidate], ledger: Ledger, *, may_borrow: bool
) -> list[Candidate]:
    """Drop every victim without which the job still fits, last taken first. Restores the ledger.

    The last victim is always kept: before it was taken, the job did not fit.
    """
    for candidate in taken:
        ledger.remove(candidate.job.group, candidate.job.request)
    kept = [taken[-1]]
    for candidate in reversed(taken[:-1]):
        ledger.add(candidate.job.group, candidate.job.request)
        if not ledger.fits(job.group, job.request, may_borrow=may_borrow):
            ledger.remove(candidate.job.group, candidate.job.request)
            kept.append(candidate)
    for candidate in kept:
        ledger.add(candidate.job.group, candidate.job.request)
    return kept[::-1]
