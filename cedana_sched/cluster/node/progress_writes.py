"""When the progress of an order is worth a write: at growing intervals, so that a long one costs hardly more."""

from __future__ import annotations

FIRST_SECONDS = 2.0
FACTOR = 2.5
SHARE = 4
"""Whoever waits for progress sees some at least so often before the order's deadline."""


class ProgressPlan:
    """Of one order that may take `limit` seconds from `now` on: 8 writes for ten minutes, 10 for a day."""

    def __init__(self, limit: float, now: float) -> None:
        self._longest = max(limit / SHARE, FIRST_SECONDS)
        self._pause = min(FIRST_SECONDS, self._longest)
        self._next = now + self._pause

    def is_due(self, now: float) -> bool:
        """Whether to write at `now`; if so, the next time is later by more than this one was."""
        if now < self._next:
            return False
        self._pause = min(self._pause * FACTOR, self._longest)
        self._next = now + self._pause
        return True
