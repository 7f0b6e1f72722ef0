"""Choice among evictees, and victim steering. Pure functions.

A call lists every evictable pod of a node, and Volcano takes only as many as its preemptor needs. Holding all of them
would freeze workloads that are no victims. So we reconstruct Volcano's order, as far as the call allows, and take the
first pods that free enough.

**Victim steering**, off by default. Volcano orders pods of one priority in one queue by creation time, whatever work
they contain. Steering reorders only such equals: first members of a gang that loses a member anyway, then those that
have least to recompute if their checkpoint should fail, which are also those with the fastest checkpoint, because a
recent generation already has most of it in the store. Unprotected pods lose everything, and are last among equals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodState
from cedana_sched_volcano.extender.wire import Task
from cedana_sched_volcano.objects import QUEUE_NAME, QUEUE_OF_JOB

_SMALLEST: Final = 0.1
"""Volcano ignores smaller differences (`minResource`, pkg/scheduler/api/resource_info.go)."""

_PODS: Final = "pods"
"""Every pod frees one of these; that alone makes no pod a victim, unless nothing else is scarce."""

_QUEUE_ANNOTATIONS: Final = (QUEUE_OF_JOB, QUEUE_NAME)


class Candidate(msgspec.Struct, frozen=True):
    """One evictee. `queue` is None if unknown; `standing` is None if the pod is not protected."""

    uid: str
    job: str
    queue: str | None
    priority: int
    created: str
    amounts: Mapping[str, float]
    standing: ProtectedPodState | None

    @property
    def is_evictable(self) -> bool:
        return self.standing is None or self.standing.may_go

    @property
    def is_to_stay(self) -> bool:
        return self.standing is not None and self.standing.stays

    @property
    def is_being_saved(self) -> bool:
        return self.standing is not None and self.standing.saving

    @property
    def equivalence_key(self) -> tuple[int, str, str]:
        """Equivalence key of pods that Volcano treats alike: one priority, and one queue or, if unknown, job."""
        return (self.priority, "queue", self.queue) if self.queue is not None else (self.priority, "job", self.job)


def build_candidate(task: Task, standing: ProtectedPodState | None) -> Candidate:
    metadata = task.pod.metadata if task.pod is not None else None
    annotations = (metadata.annotations if metadata is not None else None) or {}
    return Candidate(
        task.uid,
        task.job,
        next((annotations[key] for key in _QUEUE_ANNOTATIONS if key in annotations), None),
        task.priority,
        (metadata.creation_timestamp if metadata is not None else None) or "",
        task.requests.nonzero_amounts() if task.requests is not None else {},
        standing,
    )


def sort_in_volcano_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Order by lowest priority, then the youngest job, then the youngest pod of a job.

    `BuildVictimsPriorityQueue` (pkg/scheduler/framework/session_plugins.go) also considers shares of jobs and queues,
    which calls do not contain; a job's age is that of its oldest pod in the call.
    """
    found = list(candidates)
    began: dict[str, str] = {}
    for one in found:
        began[one.job] = min(began.get(one.job, one.created), one.created)
    found.sort(key=lambda one: (began[one.job], one.job, one.created, one.uid), reverse=True)
    found.sort(key=lambda one: one.priority)
    return found


def steer_among_equals(ordered: Sequence[Candidate], *, broken: frozenset[str] = frozenset()) -> list[Candidate]:
    """Return the order with equals permuted; see above.

    Args:
        ordered: in Volcano's order.
        broken: jobs that already lose a member to the same preemptor.
    """
    places: dict[tuple[int, str, str], list[int]] = {}
    for place, one in enumerate(ordered):
        places.setdefault(one.equivalence_key, []).append(place)
    found = list(ordered)
    for equal in places.values():
        preferred = sorted(
            (ordered[place] for place in equal), key=lambda one: (one.job not in broken, _seconds_at_stake(one))
        )
        for place, one in zip(equal, preferred, strict=True):
            found[place] = one
    return found


def _seconds_at_stake(one: Candidate) -> float:
    return math.inf if one.standing is None else one.standing.unsaved_seconds


def select_sufficient_candidates(
    ordered: Iterable[Candidate], need: Mapping[str, float], free: Mapping[str, float] | None = None
) -> tuple[Candidate, ...] | None:
    """Return the first candidates that free `need`, besides what is free anyway; None if all together do not.

    Candidates without any scarce resource are skipped.

    If free resources are unknown, they count as zero: one victim too many is possible, one too few is not.
    """
    missing = {name: amount - (free or {}).get(name, 0.0) for name, amount in need.items()}
    chosen: list[Candidate] = []
    for one in ordered:
        scarce = {name for name, amount in missing.items() if amount >= _SMALLEST}
        if not scarce:
            break
        if any(one.amounts.get(name, 0.0) > 0 for name in scarce - {_PODS} or scarce):
            chosen.append(one)
            for name in missing:
                missing[name] -= one.amounts.get(name, 0.0)
    return tuple(chosen) if all(amount < _SMALLEST for amount in missing.values()) else None


def fraction_of_need_freed(candidates: Collection[Candidate], need: Mapping[str, float]) -> float:
    """Return the fraction of `need` that they free, from 0 to 1, by the scarcest resource."""
    parts = [sum(one.amounts.get(name, 0.0) for one in candidates) / amount for name, amount in need.items()]
    return min([1.0, *parts]) if candidates else 0.0
