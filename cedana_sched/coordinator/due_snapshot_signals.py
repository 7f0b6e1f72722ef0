"""Waits until snapshots are due by the schedule, and yields their signals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from cedana_sched.coordinator.snapshot_schedule import RunningWorkload, SnapshotSchedule
from cedana_sched.model.preemption import Signal


class DueSnapshotSignals:
    """Signals of due snapshots. One reader at a time.

    Args:
        schedule: decides; its owner reports saved records to it, and calls `wake` then.
        running: returns all workloads that run and have an interval.
        now: seconds since the epoch.
        pause_seconds: least time between two looks at all workloads, however often they change.
    """

    def __init__(
        self,
        schedule: SnapshotSchedule,
        running: Callable[[], Iterable[RunningWorkload]],
        now: Callable[[], float],
        pause_seconds: float,
    ) -> None:
        self._schedule = schedule
        self._running = running
        self._now = now
        self._pause_seconds = pause_seconds
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Look again: workloads, policies or records have changed. Returns at once."""
        self._changed.set()

    async def signals(self) -> AsyncIterator[Signal]:
        """Yield each due snapshot's signal, forever."""
        while True:
            self._changed.clear()
            due = self._schedule.find_due(self._running(), self._now())
            for signal in due.signals:
                yield signal
            await asyncio.sleep(self._pause_seconds)
            await self._wait_until_due(due.next_at)

    async def _wait_until_due(self, next_at: float | None) -> None:
        wait = None if next_at is None else max(next_at - self._now(), 0.0)
        try:
            async with asyncio.timeout(wait):
                await self._changed.wait()
        except TimeoutError:
            return
