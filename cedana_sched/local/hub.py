"""Hands every change of a job, and every event, to whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cedana_sched.local.views import Change

QUEUE_LENGTH = 10_000
"""Changes that a watcher may be behind; one that is further behind is cut off, and may come again."""


class Hub:
    """Fans changes out; publishing never blocks."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Change | None]] = set()

    @property
    def watched(self) -> bool:
        """Whether anybody would see a change."""
        return bool(self._queues)

    def publish(self, change: Change) -> None:
        for queue in tuple(self._queues):
            if queue.qsize() >= QUEUE_LENGTH:
                self._queues.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(change)

    async def watch(self, first: list[Change]) -> AsyncIterator[Change]:
        """What is now, then every change."""
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            for change in first:
                yield change
            while (change_or_end := await queue.get()) is not None:
                yield change_or_end
        finally:
            self._queues.discard(queue)
