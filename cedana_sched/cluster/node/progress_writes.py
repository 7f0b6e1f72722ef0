"""When to write the progress of an order: at growing intervals, so that a long order costs hardly more writes."""

from __future__ import annotations

FIRST_SECONDS = 2.0
FACTOR = 2.5
SHARE = 4
"""The longest interval is the order's time limit divided by this: at least so many writes precede its deadline."""


class ProgressPlan:
    """Plan for one order that may take `limit` seconds from `now` on: 8 writes for ten minutes, 10 for a day."""

    def __init__(self, limit: float, now: float) -> None:
        self._longest = max(limit / SHARE, FIRST_SECONDS)
        self._pause = min(FIRST_SECONDS, self._longest)
        self._next = now + self._pause

    def is_due(self, now: float) -> bool:
        """Return whether to write at `now`; if so, the next interval is longer than this one."""
        if now < self._next:
            return False
        self._pause = min(self._pause * FACTOR, self._longest)
        self._next = now + self._pause
        return True
