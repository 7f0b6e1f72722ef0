"""Preemption candidates for a job, and their order.

Source of the rules: Kueue v0.19, pkg/scheduler/preemption/common and classical/candidate_generator.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.scheduler.resources import Resource
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    Group,
    PendingJob,
    Preemption,
    PreemptionPolicy,
    PreemptionReason,
)


class PreemptionVariant(Enum):
    """The ground on which a candidate may be preempted."""

    SAME_GROUP = PreemptionReason.IN_CLUSTER_QUEUE
    RECLAIM = PreemptionReason.IN_COHORT_RECLAMATION
    """The job stays within its group's nominal quota, and the candidate's group borrows."""
    RECLAIM_WITHOUT_BORROWING = "only if the job's group borrows nothing afterwards"
    RECLAIM_WHILE_BORROWING = PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING

    @property
    def reason(self) -> PreemptionReason:
        reclaimed = self is PreemptionVariant.RECLAIM_WITHOUT_BORROWING
        return PreemptionReason.IN_COHORT_RECLAMATION if reclaimed else PreemptionReason(self.value)


class Candidate(msgspec.Struct, frozen=True):
    """A job that may be preempted, and the ground."""

    job: AdmittedJob
    variant: PreemptionVariant

    def preemption_for(self, job: PendingJob, reason: PreemptionReason | None = None) -> Preemption:
        return Preemption(victim=self.job.uid, preemptor=job.uid, reason=reason or self.variant.reason)


def candidates_for(
    job: PendingJob, admitted: Iterable[AdmittedJob], ledger: Ledger, lacking: frozenset[Resource]
) -> list[Candidate]:
    """Return all candidates for `job`, best first: other groups before its own, low priority first, newest first."""
    group = ledger.cohort.groups[job.group]
    within_nominal = ledger.within_nominal(job.group, job.request)
    borrowers = {name for name in ledger.cohort.groups if ledger.borrows(name, lacking)}
    found = []
    for other in admitted:
        if not _is_using_lacking_resource(other, lacking) or not _policy_allows(group, job, other):
            continue
        if other.group == job.group:
            found.append(Candidate(other, PreemptionVariant.SAME_GROUP))
        elif other.group in borrowers:
            found.append(Candidate(other, _reclaim_variant(group, job, other, within_nominal=within_nominal)))
    return sorted(found, key=lambda c: _candidate_sort_key(c, job))


def _candidate_sort_key(candidate: Candidate, job: PendingJob) -> tuple[bool, int, float, str]:
    victim = candidate.job
    return (victim.group == job.group, victim.priority, -victim.admitted_at, victim.uid)


def _is_using_lacking_resource(other: AdmittedJob, lacking: frozenset[Resource]) -> bool:
    return any(other.request[r] > 0 for r in lacking)


def _policy_allows(group: Group, job: PendingJob, other: AdmittedJob) -> bool:
    policy = group.within_group if other.group == job.group else group.reclaim
    match policy:
        case PreemptionPolicy.ANY:
            return True
        case PreemptionPolicy.LOWER_PRIORITY:
            return other.priority < job.priority
        case PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
            newer = other.priority == job.priority and other.submitted_at > job.submitted_at
            return other.priority < job.priority or newer
        case PreemptionPolicy.NEVER:
            return False


def _reclaim_variant(group: Group, job: PendingJob, other: AdmittedJob, *, within_nominal: bool) -> PreemptionVariant:
    if within_nominal:
        return PreemptionVariant.RECLAIM
    threshold = group.max_priority_threshold
    too_high = other.priority >= job.priority or (threshold is not None and other.priority > threshold)
    if not group.borrow_while_preempting or too_high:
        return PreemptionVariant.RECLAIM_WITHOUT_BORROWING
    return PreemptionVariant.RECLAIM_WHILE_BORROWING
