"""Fetches what a workload's next dump needs while the workload runs, so that the dump does not freeze it for longer."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store.snapshot_store import SnapshotStore

log = structlog.get_logger()


class DumpPrefetching:
    """The fetches in flight. Best-effort: one that fails costs only time later."""

    def __init__(self, store: SnapshotStore, threads: StoreThreads) -> None:
        self._store = store
        self._threads = threads
        self._tasks: dict[SnapshotRef, asyncio.Task[None]] = {}

    def start_prefetch(self, snapshot: SnapshotRef) -> None:
        """Start a fetch for a workload that was restored from this snapshot here; returns at once."""
        if snapshot not in self._tasks:
            task = asyncio.create_task(self._fetch_page_fingerprints(snapshot), name=f"prefetch of {snapshot}")
            self._tasks[snapshot] = task
            task.add_done_callback(lambda _: self._tasks.pop(snapshot, None))

    async def close(self) -> None:
        """Stop fetching."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch_page_fingerprints(self, snapshot: SnapshotRef) -> None:
        try:
            await self._threads.background.run(self._store.prefetch_for_next_generation, snapshot)
        except CedanaSchedError as error:
            log.info("page fingerprints not prefetched", snapshot=str(snapshot), error=str(error))
