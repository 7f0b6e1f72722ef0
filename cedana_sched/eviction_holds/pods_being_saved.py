"""Whether any pod is being saved now; checked at every eviction, so computed without a scan of all holds."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta

from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.records import HoldStep

Key = tuple[str, str]
"""Namespace and name of a hold."""
EVICTION_TAKES = timedelta(seconds=5)
"""From a release until the scheduler has retried; it retries about once a second."""

_NEVER = datetime.max.replace(tzinfo=UTC)


class PodsBeingSaved:
    """In-flight holds of single pods, ordered by begin and by end.

    Both orders are heaps; changed or ended entries are popped lazily from the tops, each hold once.
    """

    def __init__(self) -> None:
        self._noted = 0
        self._current: dict[Key, int] = {}
        """The latest entry of each hold in the heaps; older entries are stale."""
        self._begun: list[tuple[datetime, int, Key]] = []
        self._ending: list[tuple[datetime, int, Key]] = []
        self._last_end: datetime | None = None

    def on_hold_change(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        """Sink of an informer."""
        if before is not None:
            self._current.pop(_hold_key_of(before), None)
        if now is None or now.spec.held_object_ref is not None:
            return
        self._noted += 1
        name = _hold_key_of(now)
        self._current[name] = self._noted
        heapq.heappush(self._ending, (_hold_ends_at(now), self._noted, name))
        if now.spec.creation_time:
            heapq.heappush(self._begun, (datetime.fromisoformat(now.spec.creation_time), self._noted, name))

    def oldest_begin(self, now: datetime) -> datetime | None:
        """Return when the oldest in-flight hold began; None if there is none."""
        while self._ending and (self._ending[0][0] <= now or not self._is_current(self._ending[0])):
            over = heapq.heappop(self._ending)
            if self._is_current(over):
                del self._current[over[2]]
                self._last_end = over[0] if self._last_end is None else max(self._last_end, over[0])
        while self._begun and not self._is_current(self._begun[0]):
            heapq.heappop(self._begun)
        return self._begun[0][0] if self._begun else None

    def last_end(self, now: datetime) -> datetime | None:
        """Return when the last hold ended, as far as they are still cached; `now` if one is in flight, None without."""
        return self._last_end if self.oldest_begin(now) is None else now

    def _is_current(self, entry: tuple[datetime, int, Key]) -> bool:
        return self._current.get(entry[2]) == entry[1]


def _hold_key_of(hold: PreemptionHold) -> Key:
    return hold.metadata.namespace, hold.metadata.name


def _hold_ends_at(hold: PreemptionHold) -> datetime:
    """Return when the hold is over if nothing changes."""
    over_at = hold.expires_at or _NEVER
    if hold.status.step is HoldStep.HOLDING:
        return hold.capped_deadline or over_at
    released = hold.status.release_time
    return min(datetime.fromisoformat(released) + EVICTION_TAKES, over_at) if released is not None else over_at
