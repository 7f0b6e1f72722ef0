"""Which of the evictees are really meant, and victim steering. Pure functions.

A call lists every pod of a node that could be evicted, and Volcano takes only as many as its preemptor needs. To hold
them all would freeze workloads that nobody wants gone. So we take Volcano's own order, as far as a call lets us see it,
and of that order the first that make enough room.

**Victim steering**, off by default. Volcano's order among pods of one priority in one queue is the order in which they
were created; it knows nothing of the work in them. Steering exchanges the places of such equals, and of no others:
first members of a gang that loses a member anyway, then those that have least to compute again if their checkpoint
should fail, which are also those whose checkpoint is made soonest, because a fresh generation has most of it stored
already. Who is not protected loses everything, and comes last among equals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cedana_sched_volcano.extender.holder import Standing
from cedana_sched_volcano.extender.wire import Task
from cedana_sched_volcano.objects import QUEUE_NAME, QUEUE_OF_JOB

_SMALLEST: Final = 0.1
"""Differences below this are none to Volcano (`minResource`, pkg/scheduler/api/resource_info.go)."""

_PODS: Final = "pods"
"""Every pod frees one of these; alone it makes nobody worth evicting, unless nothing else is scarce."""

_QUEUE_ANNOTATIONS: Final = (QUEUE_OF_JOB, QUEUE_NAME)


class Candidate(msgspec.Struct, frozen=True):
    """One evictee. `queue` is None where its pod does not say; `standing` is None where it is not protected."""

    uid: str
    job: str
    queue: str | None
    priority: int
    created: str
    amounts: Mapping[str, float]
    standing: Standing | None

    @property
    def may_go(self) -> bool:
        return self.standing is None or self.standing.may_go

    @property
    def stays(self) -> bool:
        return self.standing is not None and self.standing.stays

    @property
    def saving(self) -> bool:
        return self.standing is not None and self.standing.saving

    @property
    def equals(self) -> tuple[int, str, str]:
        """The same for those that Volcano treats alike: one priority, and one queue or, if that is not known, job."""
        return (self.priority, "queue", self.queue) if self.queue is not None else (self.priority, "job", self.job)


def candidate(task: Task, standing: Standing | None) -> Candidate:
    metadata = task.pod.metadata if task.pod is not None else None
    annotations = (metadata.annotations if metadata is not None else None) or {}
    return Candidate(
        task.uid,
        task.job,
        next((annotations[key] for key in _QUEUE_ANNOTATIONS if key in annotations), None),
        task.priority,
        (metadata.creation_timestamp if metadata is not None else None) or "",
        task.requests.amounts() if task.requests is not None else {},
        standing,
    )


def in_volcanos_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Lowest priority first, then the youngest job, and of one job the youngest pod.

    `BuildVictimsPriorityQueue` (pkg/scheduler/framework/session_plugins.go) also looks at shares of jobs and queues,
    which no call tells; a job's age is taken from its oldest pod in the call.
    """
    found = list(candidates)
    began: dict[str, str] = {}
    for one in found:
        began[one.job] = min(began.get(one.job, one.created), one.created)
    found.sort(key=lambda one: (began[one.job], one.job, one.created, one.uid), reverse=True)
    found.sort(key=lambda one: one.priority)
    return found


def steered(ordered: Sequence[Candidate], *, broken: frozenset[str] = frozenset()) -> list[Candidate]:
    """The same order, but that equals take each other's places; see above.

    Args:
        ordered: as Volcano would take them.
        broken: jobs that lose a member to the same preemptor already.
    """
    places: dict[tuple[int, str, str], list[int]] = {}
    for place, one in enumerate(ordered):
        places.setdefault(one.equals, []).append(place)
    found = list(ordered)
    for equal in places.values():
        preferred = sorted((ordered[place] for place in equal), key=lambda one: (one.job not in broken, _at_stake(one)))
        for place, one in zip(equal, preferred, strict=True):
            found[place] = one
    return found


def _at_stake(one: Candidate) -> float:
    return math.inf if one.standing is None else one.standing.unsaved_seconds


def enough(
    ordered: Iterable[Candidate], need: Mapping[str, float], free: Mapping[str, float] | None = None
) -> tuple[Candidate, ...] | None:
    """The first of them that make room for `need`, beside what is free anyway; None if all together do not.

    Who has nothing of what is scarce is passed over.

    Where it is not known what is free, it counts as nothing: one more than necessary may be meant, never one less.
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


def coverage(candidates: Collection[Candidate], need: Mapping[str, float]) -> float:
    """How much of `need` they make room for, from 0 to 1, in what is scarcest."""
    parts = [sum(one.amounts.get(name, 0.0) for one in candidates) / amount for name, amount in need.items()]
    return min([1.0, *parts]) if candidates else 0.0
