"""The agent's side of a Restore: find the snapshot, stage it, restore the workload, or start it cold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection

from cedana_sched.agent.staging import Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RUNS_ON, SnapshotOrigin, WorkloadRestorer, WorkloadRuntime
from cedana_sched.model import orders
from cedana_sched.model.errors import (
    CedanaSchedError,
    FilesChangedError,
    IntegrityError,
    RefusedError,
    RetryableError,
    StoreUnavailableError,
    may_succeed_on_retry,
)
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.store.reader import Progress
from cedana_sched.store.snapshot_store import SnapshotStore

PROGRESS_SECONDS = 10.0
"""Interval of progress reports; each extends the coordinator's deadline, which is minutes away."""
DAMAGED_TIMES = 5
"""Number of reads before a snapshot counts as damaged: a proxy or a disk may corrupt bytes for some seconds."""

ShowStaging = Callable[[str, int, int], None]
"""Shows the user the staged and the total bytes of the workload with this uid. Called often, from any thread: must be
fast."""


class RestoreOrders:
    """Performs `FindSnapshot`, `Stage`, `RestoreSnapshot`, `StartCold` and `FailWorkload`."""

    def __init__(
        self,
        runtime: WorkloadRuntime,
        restorer: WorkloadRestorer,
        store: SnapshotStore,
        staging: Staging,
        threads: StoreThreads,
        on_restored: Callable[[SnapshotRef], None] = lambda _: None,
        *,
        show_staging: ShowStaging | None = None,
        store_in_use: bool = False,
    ) -> None:
        """`on_restored` is called with the snapshot of a restored workload; `store_in_use`: see `NodeAgent`."""
        self._show_staging = show_staging
        self._store_in_use = store_in_use
        self._runtime = runtime
        self._restorer = restorer
        self._store = store
        self._staging = staging
        self._threads = threads
        self._on_restored = on_restored
        self._damaged: Counter[str] = Counter()
        """By Restore: number of damaged reads."""

    async def remove_all_but(self, restore_uids: Collection[str]) -> None:
        """See `Staging.remove_all_but`."""
        for uid in self._damaged.keys() - set(restore_uids):
            del self._damaged[uid]
        await asyncio.to_thread(self._staging.remove_all_but, restore_uids)

    async def find(self, order: orders.FindSnapshot) -> orders.Outcome:
        """Search the store.

        While the store is unavailable the answer is retryable: no workload starts cold before its deadline.
        """
        try:
            snapshot = await self._threads.run(self._choose_snapshot, order)
        except CedanaSchedError as error:
            if self._is_read_retryable(order.restore_uid, error):
                return orders.StageFailed(order.restore_uid, str(error), retryable=True)
            return orders.SnapshotFound(order.restore_uid, problem=str(error))
        self._damaged.pop(order.restore_uid, None)  # an earlier damaged read was not of the snapshot to be fetched now
        return orders.SnapshotFound(order.restore_uid, snapshot)

    def _choose_snapshot(self, order: orders.FindSnapshot) -> SnapshotRef | None:
        if self._store_in_use:
            self._store.require_store_exists()
        if order.requested_snapshot is not None:
            manifest = self._store.open_snapshot(order.requested_snapshot).manifest
            if manifest.summary.checkpoint_uid in order.excluding:
                raise RefusedError(
                    "requested snapshot",
                    str(manifest.ref),
                    "is of a checkpoint that was cancelled, and is still to be removed",
                    remedy="request another snapshot",
                )
            return manifest.ref
        newest = self._store.latest_snapshot_of(
            order.identity,
            excluding=order.excluding,
            avoiding=order.avoiding,
            past_newer_formats=order.newer_seconds <= 0,
        )
        return newest.ref if newest is not None else None

    async def stage_with_progress(
        self, order: orders.Stage, every_seconds: float = PROGRESS_SECONDS
    ) -> AsyncIterator[orders.Outcome]:
        """Stage as `stage` does, with a `StageProgress` at intervals."""
        shows = self._show_staging
        done = 0

        def count(done_bytes: int, total_bytes: int) -> None:
            nonlocal done
            done = done_bytes
            if shows is not None:
                shows(order.workload.uid, done_bytes, total_bytes)

        task = asyncio.create_task(self.stage(order, count), name=f"staging for {order.restore_uid}")
        try:
            reported = 0
            while not (await asyncio.wait({task}, timeout=every_seconds))[0]:
                if done > reported:
                    reported = done
                    yield orders.StageProgress(order.restore_uid, reported)
            yield task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stage(self, order: orders.Stage, progress: Progress | None = None) -> orders.Outcome:
        uid = order.restore_uid
        try:
            await self._threads.staging.run(
                self._staging.stage, self._store, uid, order.snapshot, progress, order.manifest_digest
            )
        except CedanaSchedError as error:
            await asyncio.to_thread(self._staging.remove, uid)
            is_read_again = self._is_read_retryable(uid, error)
            is_damaged = isinstance(error, IntegrityError) and not is_read_again
            if is_damaged:
                del self._damaged[uid]  # an older snapshot gets as many reads
            return orders.StageFailed(uid, str(error), is_read_again, is_damaged)
        except OSError as error:  # a full disk may have room in a moment, and a cold start loses the work
            await asyncio.to_thread(self._staging.remove, uid)
            return orders.StageFailed(uid, f"the snapshot cannot be staged on this node: {error}", retryable=True)
        return orders.Staged(uid)

    def _is_read_retryable(self, uid: str, error: CedanaSchedError) -> bool:
        """Return whether a later read may succeed."""
        if isinstance(error, IntegrityError):
            self._damaged[uid] += 1
            return self._damaged[uid] < DAMAGED_TIMES
        return may_succeed_on_retry(error)

    async def restore_snapshot(self, order: orders.RestoreSnapshot) -> orders.Outcome:
        """Restore the workload; stage its snapshot first if a restarted agent finds it incomplete."""
        uid = order.restore_uid
        if not await self._was_restored(order.workload):  # some of its containers may have been restored already
            try:
                facts = await asyncio.to_thread(self._staging.restore_facts, uid)
                if facts is None:
                    await self._threads.staging.run(
                        self._staging.stage, self._store, uid, order.snapshot, None, order.manifest_digest
                    )
                    facts = await asyncio.to_thread(self._staging.restore_facts, uid)
                facts = facts or {}
                ran_on = order.ran_on or facts.get(RUNS_ON) is True
                origin = SnapshotOrigin(ran_on, order.is_same_identity)
                await self._restorer.restore(uid, order.workload, self._staging.images_folder(uid), facts, origin)
            except RetryableError:
                raise
            except CedanaSchedError as error:
                if self._is_read_retryable(uid, error):
                    raise StoreUnavailableError(str(error), remedy="it is read again") from error
                await asyncio.to_thread(self._staging.remove, uid)
                why = "; ".join((str(error), *error.evidence[-3:]))
                return orders.RestoreFailed(uid, why, isinstance(error, FilesChangedError))
        self._on_restored(order.snapshot)
        await asyncio.to_thread(self._staging.remove, uid)
        return orders.RestoreSucceeded(uid, await self._restorer.describe_changed_files(order.workload))

    async def start_cold(self, order: orders.StartCold) -> orders.Outcome:
        await self._restorer.start_cold(order.restore_uid, order.workload, order.why)
        await asyncio.to_thread(self._staging.remove, order.restore_uid)
        if await self._was_restored(order.workload):
            return orders.RestoreSucceeded(order.restore_uid)
        return orders.StartedCold(order.restore_uid)

    async def fail_workload(self, order: orders.FailWorkload) -> orders.Outcome:
        await self._restorer.fail_workload(order.restore_uid, order.workload, order.why)
        await asyncio.to_thread(self._staging.remove, order.restore_uid)
        if await self._was_restored(order.workload):
            return orders.RestoreSucceeded(order.restore_uid)
        return orders.WorkloadFailed(order.restore_uid)

    async def _was_restored(self, workload: WorkloadRef) -> bool:
        running = await self._runtime.find_running(workload)
        return running is not None and running.is_restored
