"""The agent of one node: performs the coordinator's orders, and reports their outcomes.

The embedded engine runs it in its own process; in a cluster each node runs one. It has no state that must survive a
restart: what is frozen is read from the cgroup, what is committed from the store, and an incompletely staged snapshot
is staged again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from msgspec import structs

from cedana_sched.agent.cancelled_snapshots import CancelledSnapshots
from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed, CaptureProgress, CaptureRequest
from cedana_sched.agent.capture_processes import CaptureDetacher, CaptureProcesses
from cedana_sched.agent.deadline_thaws import DeadlineThaws
from cedana_sched.agent.dump_budget import DumpBudget
from cedana_sched.agent.dump_prefetching import DumpPrefetching
from cedana_sched.agent.frozen_workloads import FrozenWorkloads, resident_bytes_of
from cedana_sched.agent.garbage import Garbage
from cedana_sched.agent.restart_aware_lineage import adjust_lineage_to_run
from cedana_sched.agent.restore_orders import RestoreOrders, ShowStaging
from cedana_sched.agent.staging import Reserve, Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_preflight import FindPeer, Inspection, Preflight
from cedana_sched.agent.workload_runtime import RUNS_ON, RunningWorkload, WorkloadRestorer, WorkloadRuntime
from cedana_sched.model import orders
from cedana_sched.model.errors import CedanaSchedError, NotFoundError
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.store.page_fingerprint_cache import CACHE_BYTES
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.store_presence import NOTES

log = structlog.get_logger()

END_KNOWN_SECONDS = 10.0
"""The kubelet publishes within 1 to 3 s that a pod has finished; if the pod is evicted before, its success is not
counted."""


class NodeAgent:
    """Performs orders on the workloads of `runtime`. An async context manager: its exit stops every dump."""

    def __init__(
        self,
        *,
        runtime: WorkloadRuntime,
        restorer: WorkloadRestorer,
        storage: StorageConfig,
        toolchain: Toolchain,
        cache_directory: Path,
        cache_bytes: int = CACHE_BYTES,
        state_directory: Path,
        launcher: tuple[str, ...] = (),
        reserve: Callable[[], Reserve] = Reserve,
        namespace_share: float = 1.0,
        budget: DumpBudget | None = None,
        stall_seconds: float = STALL_SECONDS,
        detacher: CaptureDetacher | None = None,
        store_in_use: bool = False,
        wait_ended: Callable[[str], Awaitable[None]] | None = None,
        find_peer: FindPeer | None = None,
        show_staging: ShowStaging | None = None,
    ) -> None:
        """Create an agent with its files in `state_directory`.

        Args:
            runtime: runs the workloads.
            restorer: restores the workloads, or starts them cold.
            storage: the location of snapshots.
            toolchain: CRIU; with a `launcher`, paths as the launched CRIU sees them.
            cache_directory: folder of the store's local copies.
            cache_bytes: maximum size of these copies.
            state_directory: CRIU's logs and staged snapshots; with a `launcher` the same path for CRIU and the agent.
            launcher: command prefix of CRIU, if CRIU must run in other namespaces than the agent, like
                `nsenter --mount=/proc/1/ns/mnt --`.
            reserve: disk space that staged snapshots leave free.
            namespace_share: share of the rest that staged snapshots of one namespace take together; see `StagingSpace`.
            budget: limits concurrent dumps.
            stall_seconds: how long a dump may make no progress.
            detacher: see `CaptureProcesses`.
            store_in_use: whether orders to find or remove snapshots imply that snapshots exist: then a folder without a
                store is an error.
            wait_ended: returns when the owner of the workload with this uid has recorded how its processes have ended,
                perhaps never; None if they never end before that.
            find_peer: None if workloads have no addresses of their own, which change with a restore.
            show_staging: None if the progress is not shown.
        """
        self._launcher = launcher
        self._stall_seconds = stall_seconds
        self._toolchain = toolchain
        self._runtime = runtime
        self._storage = storage
        self._notes = state_directory / NOTES
        self._store = SnapshotStore.open(
            storage, cache_directory=cache_directory, cache_bytes=cache_bytes, notes=self._notes
        )
        self._cache_directory = cache_directory
        self._cache_bytes = cache_bytes
        self._work = state_directory / "captures"
        self._threads = StoreThreads()
        self._garbage = Garbage(self._store, self._threads)
        self._called_off = CancelledSnapshots(self._store, self._threads, state_directory / "called-off")
        staging = Staging(state_directory / "staged", toolchain.version, reserve, namespace_share)
        self._prefetching = DumpPrefetching(self._store, self._threads)
        self._restores = RestoreOrders(
            runtime,
            restorer,
            self._store,
            staging,
            self._threads,
            self._prefetching.start_prefetch,
            show_staging=show_staging,
            store_in_use=store_in_use,
        )
        self._store_in_use = store_in_use
        self._wait_ended = wait_ended
        self._preflight = Preflight(runtime, find_peer)
        self._frozen = FrozenWorkloads(runtime)
        self._budget = budget or DumpBudget()
        self._thaws = DeadlineThaws(self._frozen.thaw_without_order, self._budget.free_slot)
        self._captures = CaptureProcesses(toolchain, self._work, detacher)

    async def __aenter__(self) -> Self:
        await self._captures.__aenter__()
        self._garbage.start()
        self._called_off.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thaws.close()
        await self._captures.__aexit__(kind, error, trace)
        await self._prefetching.close()
        await self._garbage.close()
        await self._called_off.close()

    async def remove_stale_staging(self, restore_uids: Collection[str]) -> None:
        """Remove what a killed agent had staged, except for these restores."""
        await self._restores.remove_all_but(restore_uids)

    async def inspect(self, workload: WorkloadRef, *, peers: bool) -> Inspection | None:
        """See `Preflight.inspect`."""
        return await self._preflight.inspect(workload, peers=peers)

    async def perform(self, order: orders.Order) -> AsyncIterator[orders.Outcome]:
        """Perform an order; yields `Progress` during a dump, and last the outcome named at the order.

        Raises:
            CedanaSchedError: a transient failure, no outcome is decided: retry the order.
        """
        match order:
            case orders.Dump():
                async for outcome in self._dump(order):
                    yield outcome
            case orders.Stage():
                async for outcome in self._restores.stage_with_progress(order):
                    yield outcome
            case orders.Freeze() | orders.Kill() | orders.Thaw() | orders.Abort():
                yield await self._perform_checkpoint_order(order)
            case orders.ApplyRetention():
                yield await self._apply_retention(order)
            case orders.RemoveSnapshot() | orders.DiscardCancelled():
                yield await self._remove(order)
            case _:
                yield await self._perform_restore_order(order)

    async def _perform_checkpoint_order(
        self, order: orders.Freeze | orders.Kill | orders.Thaw | orders.Abort
    ) -> orders.Outcome:
        await self._captures.wait_for_earlier_captures()
        await self._thaws.cancel(order.checkpoint_uid)
        match order:
            case orders.Freeze():
                return await self._freeze(order)
            case orders.Kill():
                self._budget.free_slot(order.checkpoint_uid)
                is_dead = await self._frozen.kill(order.checkpoint_uid, order.workload, insist=order.insist)
                return orders.Killed(order.checkpoint_uid, still_frozen=not is_dead)
            case orders.Thaw():
                self._budget.free_slot(order.checkpoint_uid)
                await self._frozen.thaw(order.checkpoint_uid, order.workload)
                return orders.Thawed(order.checkpoint_uid)
            case orders.Abort():
                return await self._abort_checkpoint(order)

    async def _perform_restore_order(self, order: orders.Order) -> orders.Outcome:
        match order:
            case orders.FindSnapshot():
                return await self._restores.find(order)
            case orders.RestoreSnapshot():
                return await self._restores.restore_snapshot(order)
            case orders.StartCold():
                return await self._restores.start_cold(order)
            case orders.FailWorkload():
                return await self._restores.fail_workload(order)
            case _:
                raise TypeError(f"no such order: {order!r}")

    async def _freeze(self, order: orders.Freeze) -> orders.Outcome:
        uid, began = order.checkpoint_uid, asyncio.get_running_loop().time()
        if obstacle := await self._preflight.find_freeze_obstacle(order.workload):
            return orders.CheckpointFailed(uid, obstacle)
        if not order.in_gang and not await self._wait_for_dump_slot(order):
            return orders.CheckpointFailed(uid, "the checkpoint was cancelled")
        running = await self._runtime.find_running(order.workload)
        await self._captures.stop_other_captures(uid, running)
        running = None
        try:
            running = await self._frozen.freeze(uid, order.workload)
        except CedanaSchedError as error:
            return orders.CheckpointFailed(uid, str(error), retryable=True)
        finally:
            if running is None:
                self._budget.free_slot(uid)
        if running is None:
            return await self._failure_without_processes(uid, order.workload, "has no processes any more")
        if order.timeout_seconds is not None:
            await self._thaws.schedule(uid, order.workload, began + order.timeout_seconds)
        return orders.Frozen(uid)

    async def _wait_for_dump_slot(self, order: orders.Freeze | orders.Dump) -> bool:
        """Wait for a dump slot; False, and without a slot, if the checkpoint was cancelled meanwhile."""
        uid = order.checkpoint_uid
        if self._frozen.is_checkpoint_over(uid):
            return False
        running = await self._runtime.find_running(order.workload)
        if self._frozen.is_checkpoint_over(uid):
            return False
        size = await asyncio.to_thread(resident_bytes_of, running) if running is not None else 0
        if self._frozen.is_checkpoint_over(uid):  # its slot was freed before it was requested
            return False
        return await self._budget.wait_for_slot(uid, size, order.timeout_seconds)

    async def _failure_without_processes(self, uid: str, workload: WorkloadRef, why: str) -> orders.CheckpointFailed:
        """Return the failure of a workload without processes, retryable if it may be restarting instead of ended."""
        is_over = True
        if self._wait_ended is not None:
            try:
                await asyncio.wait_for(self._wait_ended(workload.uid), END_KNOWN_SECONDS)
            except TimeoutError:
                is_over = False
        return orders.CheckpointFailed(uid, f"{workload.name} {why}", retryable=not is_over, workload_gone=is_over)

    async def _dump(self, order: orders.Dump) -> AsyncIterator[orders.Outcome]:
        uid = order.checkpoint_uid
        await self._captures.wait_for_earlier_captures()
        try:
            async for outcome in self._dump_in_turn(order):
                yield outcome
        finally:
            self._budget.free_slot(uid)

    async def _dump_in_turn(self, order: orders.Dump) -> AsyncIterator[orders.Outcome]:
        uid, began = order.checkpoint_uid, asyncio.get_running_loop().time()
        has_turn = await self._wait_for_dump_slot(order)
        running = await self._runtime.find_running(order.workload)
        if running is None or not has_turn or self._frozen.is_checkpoint_over(uid):
            yield orders.CheckpointFailed(uid, f"{order.workload.name} is not there to be dumped any more")
            return
        if not self._frozen.has_frozen_processes(order.workload, running):
            why = f"a container of {order.workload.name} was restarted after it had been frozen"
            yield orders.CheckpointFailed(uid, why, retryable=True)
            return
        await self._thaws.cancel(uid)
        if self._frozen.is_checkpoint_over(uid):
            yield orders.CheckpointFailed(uid, "the checkpoint is past its deadline")
            return
        async for report in self._captures.run(self._capture_request(order, running)):
            if isinstance(report, CaptureCommitted) and not order.runs_on:
                self._frozen.mark_committed(uid)
            elif not isinstance(report, CaptureProgress):
                await self._thaws.schedule(uid, order.workload, began + order.timeout_seconds)
            match report:
                case CaptureProgress():
                    yield orders.Progress(uid, report.transfer)
                case CaptureCommitted():
                    yield orders.Committed(uid, report.snapshot, report.transfer, report.leaves, report.manifest)
                case CaptureFailed():
                    yield orders.CheckpointFailed(uid, report.why, report.retryable)

    def _capture_request(self, order: orders.Dump, running: RunningWorkload) -> CaptureRequest:
        return CaptureRequest(
            checkpoint_uid=order.checkpoint_uid,
            identity=order.identity,
            workload=structs.replace(running, restore_facts=running.restore_facts | {RUNS_ON: order.runs_on}),
            store=self._storage.dump_with_secrets(),
            toolchain=self._toolchain,
            cache_directory=str(self._cache_directory),
            cache_bytes=self._cache_bytes,
            work_directory=str(self._work / validate_segment("checkpoint", order.checkpoint_uid)),
            compression=order.compression,
            reason=order.reason,
            adapter=order.adapter,
            frozen_at=self._frozen.freeze_time_of(order.checkpoint_uid),
            timeout_seconds=order.timeout_seconds,
            launcher=self._launcher,
            lineage=adjust_lineage_to_run(order.lineage, running),
            stall_seconds=self._stall_seconds,
            store_notes=str(self._notes),
        )

    async def _abort_checkpoint(self, order: orders.Abort) -> orders.Outcome:
        uid = order.checkpoint_uid
        self._frozen.end_checkpoint(uid)
        self._budget.free_slot(uid)
        await self._captures.stop(uid, await self._runtime.find_running(order.workload))
        await self._frozen.thaw(uid, order.workload)
        is_removed = await self._called_off.remove(order.identity, uid)
        return orders.Aborted(uid, cleanup_pending=not is_removed)

    async def _apply_retention(self, order: orders.ApplyRetention) -> orders.Outcome:
        try:
            removed = await self._threads.background.run(
                self._store.apply_retention, order.identity, order.retention, spare=order.spare
            )
        except CedanaSchedError as error:
            log.warning("retention not applied", identity=str(order.identity), error=str(error))
            removed = ()
        self._garbage.schedule_collection(order.identity.namespace)  # after failed dumps as well, which remove nothing
        return orders.RetentionApplied(order.checkpoint_uid, removed)

    async def _remove(self, order: orders.RemoveSnapshot | orders.DiscardCancelled) -> orders.Outcome:
        uid = order.checkpoint_uid
        try:
            if self._store_in_use:
                await self._threads.run(self._store.require_store_exists)
            if isinstance(order, orders.DiscardCancelled):
                await self._threads.run(self._called_off.remove_committed, order.identity, uid)
            else:
                await self._threads.run(self._store.remove, order.snapshot)
        except NotFoundError as error:
            log.info("snapshot was removed already", checkpoint=uid, error=error.message)
        except CedanaSchedError as error:
            return orders.RemovalFailed(uid, str(error))
        identity = order.identity if isinstance(order, orders.DiscardCancelled) else order.snapshot.identity
        self._garbage.schedule_collection(identity.namespace)
        return orders.SnapshotRemoved(uid)
