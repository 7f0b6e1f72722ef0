"""A clock that only the test moves: minutes pass in microseconds, and always in the same order."""

from __future__ import annotations

import asyncio
import heapq
import itertools

TURNS = 60
"""Rounds of the event loop that let every ready task run on; more than any chain of awaits here is long."""


class VirtualClock:
    """Implements `ports.Clock`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self._now = now
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def wait_until(self, at: float) -> None:
        if at <= self._now:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (at, next(self._order), future))
        await future

    async def settle(self) -> None:
        """Let everything that can run without time passing run."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its own moment."""
        end = self._now + seconds
        await self.settle()
        while self._waiting and self._waiting[0][0] <= end:
            at, _, future = heapq.heappop(self._waiting)
            self._now = max(self._now, at)
            if not future.done():
                future.set_result(None)
                await self.settle()
        self._now = end
        await self.settle()
