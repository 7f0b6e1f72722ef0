"""The agent of one node: takes the coordinator's orders, does them, and says how it went.

The embedded engine calls it in its own process; in a cluster each node runs one. It keeps nothing that matters over
a restart: what is frozen is read from the cgroup, what is committed from the store, what is staged is staged again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from cedana_sched.agent.captures import Captures
from cedana_sched.agent.messages import CaptureCommitted, CaptureFailed, CaptureProgress, CaptureRequest
from cedana_sched.agent.runtime import WorkloadRuntime
from cedana_sched.agent.staging import Staging
from cedana_sched.model import orders
from cedana_sched.model.errors import CedanaSchedError, RetryableError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.toolchain import Toolchain
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.snapshots import SnapshotStore

log = structlog.get_logger()


class NodeAgent:
    """Executes orders on the workloads of `runtime`. An async context manager: leaving it stops every dump."""

    def __init__(
        self,
        *,
        runtime: WorkloadRuntime,
        storage: StorageConfig,
        toolchain: Toolchain,
        cache_directory: Path,
        state_directory: Path,
    ) -> None:
        self._runtime = runtime
        self._storage = storage
        self._store = SnapshotStore.open(storage, cache_directory=cache_directory)
        self._cache_directory = cache_directory
        self._work = state_directory / "captures"
        self._staging = Staging(state_directory / "staged", toolchain.version)
        self._captures = Captures(toolchain)
        self._frozen_by: dict[str, str] = {}
        self._frozen_at: dict[str, float] = {}
        self._called_off: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._captures.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._captures.__aexit__(kind, error, trace)

    async def perform(self, order: orders.Order) -> AsyncIterator[orders.Outcome]:
        """Do what `order` says; yields `Progress` while a dump lasts, and last the outcome named at the order."""
        match order:
            case orders.Dump():
                async for outcome in self._dump(order):
                    yield outcome
            case orders.Freeze():
                yield await self._freeze(order)
            case orders.Kill():
                yield await self._kill(order)
            case orders.Resume():
                await self._thaw(order.checkpoint_uid, order.workload)
                yield orders.Resumed(order.checkpoint_uid)
            case orders.Abort():
                yield await self._abort(order)
            case orders.Retain():
                yield await self._retain(order)
            case _:
                yield await self._start(order)

    async def _start(self, order: orders.Order) -> orders.Outcome:
        match order:
            case orders.Find():
                return await self._find(order)
            case orders.Stage():
                return await self._stage(order)
            case orders.Continue():
                return await self._continue(order)
            case orders.StartCold():
                await self._runtime.start_cold(order.workload, order.why)
                self._staging.remove(order.restore_uid)
                return orders.StartedCold(order.restore_uid)
            case orders.GiveUp():
                await self._runtime.give_up(order.workload, order.why)
                self._staging.remove(order.restore_uid)
                return orders.GaveUp(order.restore_uid)
            case _:
                raise TypeError(f"no such order: {order!r}")

    async def _freeze(self, order: orders.Freeze) -> orders.Outcome:
        uid = order.checkpoint_uid
        if uid in self._called_off:
            return orders.CheckpointFailed(uid, "the checkpoint was called off")
        running = await self._runtime.running(order.workload)
        if running is None:
            return orders.CheckpointFailed(uid, f"{order.workload.name} has no processes any more")
        self._frozen_by[order.workload.uid] = uid
        self._frozen_at[uid] = time.time()
        try:
            await asyncio.to_thread(freezer.freeze, running.freezer)
        except CedanaSchedError as error:
            return orders.CheckpointFailed(uid, str(error), retryable=True)
        return orders.Frozen(uid)

    async def _dump(self, order: orders.Dump) -> AsyncIterator[orders.Outcome]:
        uid = order.checkpoint_uid
        running = await self._runtime.running(order.workload)
        if running is None or uid in self._called_off:
            yield orders.CheckpointFailed(uid, f"{order.workload.name} is not there to be dumped any more")
            return
        request = CaptureRequest(
            checkpoint_uid=uid,
            identity=order.identity,
            root_pid=running.root_pid,
            freezer=str(running.freezer),
            externals=running.externals,
            restore_facts=running.restore_facts,
            store=self._storage.reveal(),
            cache_directory=str(self._cache_directory),
            work_directory=str(self._work / uid),
            compression=order.compression,
            reason=order.reason,
            adapter=order.adapter,
            frozen_at=self._frozen_at.get(uid, time.time()),
            timeout_seconds=order.timeout_seconds,
        )
        async for report in self._captures.run(request):
            match report:
                case CaptureProgress():
                    yield orders.Progress(uid, report.transfer)
                case CaptureCommitted():
                    yield orders.Committed(uid, report.snapshot, report.transfer)
                case CaptureFailed():
                    yield orders.CheckpointFailed(uid, report.why, report.retryable)

    async def _kill(self, order: orders.Kill) -> orders.Outcome:
        if running := await self._runtime.running(order.workload):
            await asyncio.to_thread(freezer.kill, running.freezer)
        self._forget(order.checkpoint_uid, order.workload)
        return orders.Killed(order.checkpoint_uid)

    async def _abort(self, order: orders.Abort) -> orders.Outcome:
        self._called_off.add(order.checkpoint_uid)
        await self._captures.stop(order.checkpoint_uid)
        await self._thaw(order.checkpoint_uid, order.workload)
        try:
            await asyncio.to_thread(self._remove_committed, order)
        except CedanaSchedError as error:
            # The coordinator never uses the snapshot of a checkpoint that it called off; retention removes it later.
            log.warning("called-off snapshot not removed", checkpoint=order.checkpoint_uid, error=str(error))
        return orders.Aborted(order.checkpoint_uid)

    def _remove_committed(self, order: orders.Abort) -> None:
        if committed := self._store.find_committed(order.identity, order.checkpoint_uid):
            self._store.remove(committed.ref)

    async def _thaw(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Unless another checkpoint has frozen it meanwhile; after a restart of the agent nobody is remembered."""
        if self._frozen_by.get(workload.uid, checkpoint_uid) != checkpoint_uid:
            return
        if running := await self._runtime.running(workload):
            await asyncio.to_thread(freezer.thaw, running.freezer)
        self._forget(checkpoint_uid, workload)

    def _forget(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        self._frozen_at.pop(checkpoint_uid, None)
        if self._frozen_by.get(workload.uid) == checkpoint_uid:
            del self._frozen_by[workload.uid]

    async def _find(self, order: orders.Find) -> orders.Outcome:
        try:
            snapshot = await asyncio.to_thread(self._newest, order)
        except CedanaSchedError as error:
            return orders.Found(order.restore_uid, problem=str(error))
        return orders.Found(order.restore_uid, snapshot)

    def _newest(self, order: orders.Find) -> SnapshotRef | None:
        if order.wanted is not None:
            return self._store.open_snapshot(order.wanted).manifest.ref
        found = self._store.list(order.identity.namespace, order.identity.id)
        usable = [
            summary.ref
            for summary in found
            if summary.ref.identity == order.identity and summary.checkpoint_uid not in order.excluding
        ]
        return max(usable, key=lambda ref: ref.generation, default=None)

    async def _stage(self, order: orders.Stage) -> orders.Outcome:
        try:
            await asyncio.to_thread(self._staging.stage, self._store, order.restore_uid, order.snapshot)
        except CedanaSchedError as error:
            self._staging.remove(order.restore_uid)
            return orders.StageFailed(order.restore_uid, str(error), isinstance(error, RetryableError))
        except OSError as error:
            self._staging.remove(order.restore_uid)
            return orders.StageFailed(order.restore_uid, f"the snapshot cannot be laid on this node: {error}")
        return orders.Staged(order.restore_uid)

    async def _continue(self, order: orders.Continue) -> orders.Outcome:
        if await self._runtime.running(order.workload) is None:
            try:
                facts = await asyncio.to_thread(self._staging.restore_facts, self._store, order.snapshot)
                await self._runtime.continue_from(order.workload, self._staging.images(order.restore_uid), facts)
            except CedanaSchedError as error:
                self._staging.remove(order.restore_uid)
                return orders.ContinueFailed(order.restore_uid, "; ".join((str(error), *error.evidence[-3:])))
        await asyncio.to_thread(self._staging.remove, order.restore_uid)
        return orders.Continued(order.restore_uid)

    async def _retain(self, order: orders.Retain) -> orders.Outcome:
        try:
            removed = await asyncio.to_thread(self._apply_retention, order)
        except CedanaSchedError as error:
            log.warning("retention not applied", identity=str(order.identity), error=str(error))
            removed = ()
        return orders.Retained(order.checkpoint_uid, removed)

    def _apply_retention(self, order: orders.Retain) -> tuple[SnapshotRef, ...]:
        removed = self._store.apply_retention(order.identity, order.retention, spare=order.spare)
        self._store.collect_garbage(order.identity.namespace)
        return tuple(removed)
