"""Timers of the records: one per uid, earliest first."""

from __future__ import annotations

import heapq


class Deadlines:
    """A heap with lazy deletion: `set` and `pop_due` are O(log n) for each uid, amortised; `next` is amortised O(1)."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, uid: str, at: float | None) -> None:
        """Set or replace the timer of `uid`; None removes it."""
        if at is None:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heapq.heappush(self._heap, (at, uid))

    def next(self) -> float | None:
        """Return the earliest time; None if no timer is set."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> list[str]:
        """Remove and return every uid whose time has come, earliest first."""
        due: list[str] = []
        while (at := self.next()) is not None and at <= now:
            _, uid = heapq.heappop(self._heap)
            del self._at[uid]
            due.append(uid)
        return due
