"""What is to be done on the side, each thing under its name and until it is done.

Each has a task of its own, and no worker of a few (`kube.work_queue`): a job that was preempted again waits for minutes
before it is submitted, and pods that are being deleted have seconds to be let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched_armada.retrying import until_done

log = structlog.get_logger(__name__)


class _DefectError(CedanaSchedError):
    """What should never have happened."""


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
            await until_done(name, lambda: _guarded(name, work))
        finally:
            self._known.discard(name)


async def _guarded(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """A defect that one job shows would end the coordinator for every scheduler, and again whenever it is started."""
    try:
        await work()
    except CedanaSchedError:
        raise
    except Exception as error:
        log.exception("chore failed", what=name)
        raise _DefectError(f"{name}: {error!r}", remedy="report it") from error
