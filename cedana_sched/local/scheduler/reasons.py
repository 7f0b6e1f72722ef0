"""Why a job waits, as actionable text for its owner."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cedana_sched.local.scheduler.ledger import Ledger, maximum_usage
from cedana_sched.local.scheduler.resources import Resource, Resources, in_words
from cedana_sched.local.scheduler.scheduling_types import (
    AdmittedJob,
    Cohort,
    PendingJob,
    Preemption,
    PreemptionPolicy,
)


class NeverFits(msgspec.Struct, frozen=True):
    """Why a request can never be met; `resource` is None if the group does not exist."""

    group: str
    resource: Resource | None
    requested: int = 0
    most: int = 0

    def __str__(self) -> str:
        if self.resource is None:
            return f"there is no group {self.group!r}"
        requested, most = in_words(self.resource, self.requested), in_words(self.resource, self.most)
        return f"it requests {requested}, and group {self.group!r} can have {most} at most, borrowing included"


def why_never_fitting(cohort: Cohort, group: str, request: Resources) -> NeverFits | None:
    """Return why `request` cannot be met even on an idle machine; None if it can."""
    if group not in cohort.groups:
        return NeverFits(group, None)
    most = maximum_usage(cohort, group)
    for resource in Resource:
        if request[resource] > most[resource]:
            return NeverFits(group, resource, request[resource], most[resource])
    return None


def why_waiting_for_place(job: PendingJob, leaving: Sequence[AdmittedJob]) -> str:
    """Explain a wait for a place that is assigned, and whose current users are not gone yet."""
    own = sorted(a.display_name for a in leaving if a.eviction is not None and a.eviction.preemptor == job.uid)
    names = own or sorted(a.display_name for a in leaving)
    return f"waits until {_join_names(names)} {'is' if len(names) == 1 else 'are'} gone"


def why_preempting(preemptions: Sequence[Preemption], victims: Sequence[AdmittedJob]) -> str:
    reasons = sorted({p.reason.words for p in preemptions})
    return f"preempts {_join_names(sorted(v.display_name for v in victims))} by {' and '.join(reasons)}"


def why_not_fitting(job: PendingJob, ledger: Ledger) -> str:
    """Explain that a job does not fit, and that no job may be preempted for it."""
    group = ledger.cohort.groups[job.group]
    lacking = sorted(ledger.lacking(job.group, job.request))
    parts = [
        f"needs {in_words(r, job.request[r])}, {in_words(r, max(0, ledger.available(job.group, r)))} free to its group"
        for r in lacking
    ]
    never = PreemptionPolicy.NEVER
    if group.reclaim is never and group.within_group is never:
        return "; ".join([*parts, "its group preempts no job (reclaimWithinCohort and withinClusterQueue are Never)"])
    return "; ".join([*parts, "no job can be preempted for it now"])


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nobody"
