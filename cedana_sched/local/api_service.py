"""The service behind the engine's API: reads are served from memory, requests go to the scheduling loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from cedana_sched import __version__
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.local.hub import Hub
from cedana_sched.local.jobs.job import Job
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.presenting import event_view, group_views, job_view
from cedana_sched.local.record_cache import RecordCache
from cedana_sched.local.views import Change, EngineView, EventView, JobView, Submission
from cedana_sched.model.errors import DumpError
from cedana_sched.model.orders import Progress
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint, PreemptionHold, Record
from cedana_sched.store.storage_config import StorageConfig


@dataclass(frozen=True)
class EngineFacts:
    """Facts that are constant while the engine runs."""

    pid: int
    started_at: float
    state_directory: Path
    store: StorageConfig
    criu: str


class EngineService:
    """Implements `api.Service`, the loop's `Watcher` and the coordinator's `EventListener`."""

    def __init__(self, about: EngineFacts, loop: SchedulingLoop, records: RecordCache, hub: Hub) -> None:
        self._about = about
        self._loop = loop
        self._records = records
        self._hub = hub

    # -- api.Service

    def engine_view(self) -> EngineView:
        """Return the engine and its groups."""
        configuration = self._loop.configuration
        about = self._about
        return EngineView(
            version=__version__,
            pid=about.pid,
            started_at=about.started_at,
            state_directory=str(about.state_directory),
            store=str(about.store),
            criu=about.criu,
            capacity_cpus=configuration.capacity.resources.cpu / 1000,
            capacity_memory_bytes=configuration.capacity.resources.memory,
            groups=group_views(configuration, self._loop.jobs),
            store_endpoint=about.store.s3.endpoint if about.store.s3 else None,
            store_region=about.store.s3.region if about.store.s3 else None,
            key_file=str(about.store.key_file) if about.store.key_file else None,
            accepts_unsealed=about.store.accept_unsealed,
        )

    def jobs(self) -> list[JobView]:
        return [self._view(job) for job in self._loop.jobs]

    def job(self, key: str) -> JobView:
        return self._view(self._loop.find(key))

    async def submit(self, submission: Submission) -> JobView:
        return self._view(await self._loop.submit(submission))

    async def preempt(self, key: str) -> JobView:
        return self._view(await self._loop.preempt(key))

    async def checkpoint(self, key: str, *, leave_running: bool) -> JobView:
        """Take a snapshot and wait until it is terminal.

        Raises:
            DumpError: no snapshot was taken; the error has the reason.
        """
        uid = self._loop.find(key).uid
        signal = await self._loop.checkpoint(uid, leave_running=leave_running)
        checkpoints = await self._records.wait_until_terminal(signal)
        await self._loop.wait_until_signal_closed(signal)
        for checkpoint in checkpoints:
            if checkpoint.snapshot is None or checkpoint.failure is not None:
                why = checkpoint.failure or "it was cancelled"
                raise DumpError(f"no snapshot of {checkpoint.workload.name} was taken: {why}")
        return self.job(uid)

    async def restore(self, key: str, generation: int | None) -> JobView:
        return self._view(await self._loop.restore(key, generation))

    async def cancel(self, key: str) -> JobView:
        return self._view(await self._loop.cancel(key))

    def watch(self) -> AsyncIterator[Change]:
        return self._hub.watch([Change(job=view) for view in self.jobs()])

    # -- notifications

    def on_changes(self, jobs: tuple[Job, ...], events: tuple[EventView, ...]) -> None:
        """See `loop.Watcher`."""
        if self._hub.has_watchers:
            for job in jobs:
                self._hub.publish(Change(job=self._view(job)))
            for event in events:
                self._hub.publish(Change(event=event))

    def on_event(self, event: PublishEvent) -> None:
        """See `coordinator.ports.EventListener`."""
        owner = self._loop.job_uid_of_run(event.workload.uid) if event.workload else None
        self._hub.publish(Change(event=event_view(event, time.time(), owner)))

    def on_progress(self, progress: Progress) -> None:
        """Publish the progress of a dump."""
        if (checkpoint := self._records.update_progress(progress)) is not None:
            self._publish_job_of_run(checkpoint.workload.uid)

    def on_records_saved(self, records: tuple[Record, ...]) -> None:
        """Publish the jobs whose coordinator records have changed."""
        for record in records:
            if not isinstance(record, PreemptionHold):
                self._publish_job_of_run(record.workload.uid)

    def _publish_job_of_run(self, run: str) -> None:
        owner = self._loop.job_uid_of_run(run)
        if owner is not None and self._hub.has_watchers:
            self._hub.publish(Change(job=self.job(owner)))

    def _view(self, job: Job) -> JobView:
        return job_view(job, self._records)


def terminal_snapshots_of_running_jobs(records: tuple[Record, ...]) -> tuple[Checkpoint, ...]:
    """Return the terminal checkpoints of jobs that keep running, out of `records`."""
    return tuple(
        r
        for r in records
        if isinstance(r, Checkpoint) and r.is_terminal and r.after_commit is AfterCommit.LEAVE_RUNNING
    )
