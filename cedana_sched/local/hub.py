"""Publish/subscribe of changes of jobs and events to watchers of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cedana_sched.local.views import Change

QUEUE_LENGTH = 10_000
"""Maximum backlog of a watcher; a slower watcher is disconnected, and may watch again."""


class Hub:
    """Fan-out of changes to watchers; publishing never blocks."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Change | None]] = set()

    @property
    def has_watchers(self) -> bool:
        """Whether there is a watcher."""
        return bool(self._queues)

    def publish(self, change: Change) -> None:
        for queue in tuple(self._queues):
            if queue.qsize() >= QUEUE_LENGTH:
                self._queues.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(change)

    async def watch(self, first: list[Change]) -> AsyncIterator[Change]:
        """Yield the current state in `first`, then every change."""
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            for change in first:
                yield change
            while (change_or_end := await queue.get()) is not None:
                yield change_or_end
        finally:
            self._queues.discard(queue)
