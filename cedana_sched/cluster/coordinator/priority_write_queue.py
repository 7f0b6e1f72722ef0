"""A write queue with two lanes: writes that a component waits for precede writes that only display state.

So in a storm of preemptions, the orders of a thousand victims do not wait behind the displayed state of the first ones;
a displayed state that a newer one supersedes in the queue costs no write.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class PriorityWriteQueue(Generic[T]):
    """A queue that holds each item once, compared by object identity."""

    def __init__(self) -> None:
        self._urgent: dict[int, T] = {}
        self._others: dict[int, T] = {}
        self._count = asyncio.Semaphore(0)

    def put(self, item: T, *, urgent: bool) -> None:
        """Enqueue an item; a queued item moves to the urgent lane if `urgent`, and never back."""
        key = id(item)
        if key in self._urgent:
            return
        waits = key in self._others
        if urgent:
            self._others.pop(key, None)
            self._urgent[key] = item
        else:
            self._others[key] = item
        if not waits:
            self._count.release()

    async def get(self) -> T:
        """Wait for and return the longest-waiting item, urgent ones first."""
        await self._count.acquire()
        lane = self._urgent or self._others
        return lane.pop(next(iter(lane)))
