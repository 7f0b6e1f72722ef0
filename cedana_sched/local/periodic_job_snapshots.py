"""Takes the snapshots of running jobs that are due by their policy's interval."""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.coordinator.due_snapshot_signals import DueSnapshotSignals
from cedana_sched.coordinator.snapshot_schedule import SnapshotSchedule
from cedana_sched.local.jobs.evictions import ADAPTER
from cedana_sched.local.jobs.job import Job
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.views import EventView
from cedana_sched.model.records import Record

PAUSE_SECONDS = 0.1


class PeriodicJobSnapshots:
    """Periodic snapshots of one engine's jobs; implements `loop.Watcher`. Run `run` as a task.

    `on_records_saved` must receive all records first, then every saved change.
    """

    def __init__(self, loop: SchedulingLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._schedule = SnapshotSchedule(ADAPTER)
        self._snapshots = DueSnapshotSignals(self._schedule, loop.workloads_with_interval, now, PAUSE_SECONDS)

    async def run(self) -> None:
        """Start each snapshot when it is due, forever."""
        async for signal in self._snapshots.signals():
            await self._loop.take_periodic_snapshot(signal)

    def on_records_saved(self, records: tuple[Record, ...]) -> None:
        """Update the schedule."""
        self._schedule.on_records_saved(records)
        self._snapshots.wake()

    def on_changes(self, jobs: tuple[Job, ...], events: tuple[EventView, ...]) -> None:
        """See `loop.Watcher`."""
        del jobs, events
        self._snapshots.wake()
