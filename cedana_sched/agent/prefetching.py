"""Fetches what a workload's next dump needs while the workload runs, so that the dump does not freeze it for longer."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store.snapshots import SnapshotStore

log = structlog.get_logger()


class Prefetching:
    """The fetches in flight. Best-effort: one that fails costs only time later."""

    def __init__(self, store: SnapshotStore, threads: StoreThreads) -> None:
        self._store = store
        self._threads = threads
        self._tasks: dict[SnapshotRef, asyncio.Task[None]] = {}

    def begin(self, snapshot: SnapshotRef) -> None:
        """Start a fetch for a workload that was restored from this snapshot here; returns at once."""
        if snapshot not in self._tasks:
            task = asyncio.create_task(self._fetch(snapshot), name=f"prefetch of {snapshot}")
            self._tasks[snapshot] = task
            task.add_done_callback(lambda _: self._tasks.pop(snapshot, None))

    async def close(self) -> None:
        """Stop fetching."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, snapshot: SnapshotRef) -> None:
        try:
            await self._threads.background.run(self._store.prefetch, snapshot)
        except CedanaSchedError as error:
            log.info("page fingerprints not prefetched", snapshot=str(snapshot), problem=str(error))
