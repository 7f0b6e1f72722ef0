"""Whether any pod is being saved now, anywhere or in one namespace.

It is checked at every eviction, so computed without a scan of all holds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.records import HoldStep

Key = tuple[str, str]
"""Namespace and name of a hold."""
EVICTION_TAKES = timedelta(seconds=5)
"""From a release until the scheduler has retried; it retries about once a second."""

MOST_STALE: Final = 64
"""Stale entries of a heap that are kept, besides as many as there are others."""

_NEVER = datetime.max.replace(tzinfo=UTC)


class PodsBeingSaved:
    """In-flight holds of single pods, ordered by begin and by end.

    Both orders are heaps; changed or ended entries are popped lazily from the tops, each hold once, and removed
    together once they are most of a heap.
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
        if len(self._ending) > 2 * len(self._current) + MOST_STALE:
            self._ending = [entry for entry in self._ending if self._is_current(entry)]
            self._begun = [entry for entry in self._begun if self._is_current(entry)]
            heapq.heapify(self._ending)
            heapq.heapify(self._begun)

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


class PodsBeingSavedByNamespace:
    """`PodsBeingSaved` of each namespace that has holds."""

    def __init__(self) -> None:
        self._of_namespace: dict[str, PodsBeingSaved] = {}
        self._cached: Counter[str] = Counter()
        """Holds by namespace."""

    def on_hold_change(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        """Sink of an informer."""
        if (hold := now or before) is None:
            return
        namespace = hold.metadata.namespace
        self._of_namespace.setdefault(namespace, PodsBeingSaved()).on_hold_change(before, now)
        self._cached[namespace] += (now is not None) - (before is not None)
        if self._cached[namespace] <= 0:
            del self._cached[namespace], self._of_namespace[namespace]

    def last_end(self, namespace: str, now: datetime) -> datetime | None:
        """See `PodsBeingSaved.last_end`."""
        found = self._of_namespace.get(namespace)
        return None if found is None else found.last_end(now)


def _hold_key_of(hold: PreemptionHold) -> Key:
    return hold.metadata.namespace, hold.metadata.name


def _hold_ends_at(hold: PreemptionHold) -> datetime:
    """Return when the hold is over if nothing changes."""
    over_at = hold.expires_at or _NEVER
    if hold.status.step is HoldStep.HOLDING:
        return hold.capped_deadline or over_at
    released = hold.status.release_time
    return min(datetime.fromisoformat(released) + EVICTION_TAKES, over_at) if released is not None else over_at
