"""What waits for a writer, in two lanes: what somebody waits for is taken first, what only shows something after it.

In a storm of preemptions the orders of a thousand victims so do not wait behind what is shown of the first ones; what
is shown waits until something newer has overtaken it, and costs no write.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """A queue that holds each item once. Items are told apart by `is`."""

    def __init__(self) -> None:
        self._urgent: dict[int, T] = {}
        self._others: dict[int, T] = {}
        self._count = asyncio.Semaphore(0)

    def put(self, item: T, *, urgent: bool) -> None:
        """Have it taken; one that waits already is moved where it is urgent now, and never back."""
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
        """The one that has waited longest, of the urgent ones first; it waits until there is one."""
        await self._count.acquire()
        lane = self._urgent or self._others
        return lane.pop(next(iter(lane)))
