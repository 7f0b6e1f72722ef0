"""What is to be done on the side, each thing under its name and until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cedana_sched_armada.retrying import until_done


class Chores:
    """Tasks of one owner; what is started before `run` waits for it."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[str, Callable[[], Awaitable[None]]]] = asyncio.Queue()
        self._known: set[str] = set()

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Have it done, unless it is under way; returns at once."""
        if name not in self._known:
            self._known.add(name)
            self._waiting.put_nowait((name, work))

    async def run(self) -> None:
        """Do them, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                name, work = await self._waiting.get()
                group.create_task(self._do(name, work), name=name)

    async def _do(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await until_done(name, work)
        finally:
            self._known.discard(name)
