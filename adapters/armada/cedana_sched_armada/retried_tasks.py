"""Named background jobs, each retried until it succeeds.

Each has a task of its own instead of one of a few workers (`kube.work_queue`): a job that was preempted again waits for
minutes before it is resubmitted, while terminating pods must be released within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import retry

log = structlog.get_logger(__name__)


class _DefectError(CedanaSchedError):
    """An unexpected exception."""


class RetriedTasks:
    """Background tasks of one owner; those started before `run` wait for it."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[str, Callable[[], Awaitable[None]]]] = asyncio.Queue()
        self._known: set[str] = set()

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start `work` unless one of that name is in progress; returns at once."""
        if name not in self._known:
            self._known.add(name)
            self._waiting.put_nowait((name, work))

    async def run(self) -> None:
        """Run the tasks, forever."""
        async with asyncio.TaskGroup() as group:
            while True:
                name, work = await self._waiting.get()
                group.create_task(self._run_with_retries(name, work), name=name)

    async def _run_with_retries(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await retry(name, lambda: _run_converting_defects(name, work), CedanaSchedError)
        finally:
            self._known.discard(name)


async def _run_converting_defects(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Convert defects, which would end the coordinator for every scheduler, and again after each restart."""
    try:
        await work()
    except CedanaSchedError:
        raise
    except Exception as error:
        log.exception("chore failed", what=name)
        raise _DefectError(f"{name}: {error!r}", remedy="report it") from error
