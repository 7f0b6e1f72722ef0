"""When running workloads are looked at: soon after their start, and on request. Pure: the caller has the clock.

Programs open what cannot be saved after their start, as Node.js does at its first access to a file. So a workload is
looked at three times, and then only on request. Tenants request it by an annotation, as often as they like, so requests
of one workload have a least distance; those that come earlier become one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from cedana_sched.model.preemption import WorkloadRef

LOOK_AFTER_SECONDS = (0.0, 10.0, 60.0)
"""After a workload's start."""
REQUEST_DISTANCE_SECONDS = 10.0
"""Least time from the last look at a workload until a request for another one counts."""
RETRY_SECONDS = 10.0
"""Pause before a failed look is repeated; doubled with each failure of the workload."""
MOST_RETRIES = 5
"""Failures of one workload in succession after which its look is given up."""


class Look(msgspec.Struct, frozen=True):
    """One look that is due."""

    workload: WorkloadRef
    is_last: bool
    """Whether no further look at this workload is due."""
    is_requested: bool
    """Whether a user waits for its result."""


@dataclass
class _Watched:
    workload: WorkloadRef
    after_start: list[float] = field(default_factory=list)
    """Ascending."""
    extra: float | None = None
    """When the look is due that a user requests, or that is repeated."""
    requested: bool = False
    looked_at: float = -math.inf
    failures: int = 0

    @property
    def due(self) -> float:
        return min(
            self.after_start[0] if self.after_start else math.inf, math.inf if self.extra is None else self.extra
        )

    def add_extra(self, due: float) -> None:
        self.extra = due if self.extra is None else min(self.extra, due)


class InspectionSchedule:
    """The looks that are due. All times are seconds of one clock of the caller."""

    def __init__(self, after: tuple[float, ...] = LOOK_AFTER_SECONDS) -> None:
        self._after = after
        self._watched: dict[str, _Watched] = {}

    def on_started(self, workload: WorkloadRef, now: float, ran_seconds: float = 0.0) -> None:
        """Schedule the looks at a workload that started `ran_seconds` ago, one of them at once; replaces earlier ones.

        `ran_seconds` is more than zero where the caller itself has started later.
        """
        watched = self._watched.setdefault(workload.uid, _Watched(workload))
        watched.after_start = [now, *(now + after - ran_seconds for after in self._after if after > ran_seconds)]
        watched.failures = 0

    def request(self, workload: WorkloadRef, now: float) -> None:
        """Schedule one look as soon as it is allowed."""
        watched = self._watched.setdefault(workload.uid, _Watched(workload))
        watched.requested = True
        watched.add_extra(max(now, watched.looked_at + REQUEST_DISTANCE_SECONDS))

    def drop(self, uid: str) -> None:
        """Drop a workload."""
        self._watched.pop(uid, None)

    def next_due(self) -> float | None:
        """Return when the next look is due; None if none is."""
        due = min((one.due for one in self._watched.values()), default=math.inf)
        return None if due == math.inf else due

    def take_due(self, now: float) -> Look | None:
        """Return the look that has been due longest, which is no longer scheduled; None if none is due."""
        watched = min(self._watched.values(), key=lambda one: one.due, default=None)
        if watched is None or watched.due > now:
            return None
        watched.after_start = [due for due in watched.after_start if due > now]
        requested, watched.requested, watched.looked_at = watched.requested, False, now
        watched.extra = None
        return Look(watched.workload, is_last=not watched.after_start, is_requested=requested)

    def on_succeeded(self, look: Look) -> None:
        """Note that the result of a look is published."""
        if (watched := self._watched.get(look.workload.uid)) is not None:
            watched.failures = 0

    def on_failed(self, look: Look, now: float) -> None:
        """Schedule a look again that could not be made or published, unless it has failed too often."""
        watched = self._watched.get(look.workload.uid)
        if watched is None or watched.failures >= MOST_RETRIES:
            return
        watched.requested = watched.requested or look.is_requested
        watched.add_extra(now + RETRY_SECONDS * 2**watched.failures)
        watched.failures += 1
