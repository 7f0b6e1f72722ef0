"""Removes the snapshots of deleted Checkpoints: deleted by a user, with their Job, or with their namespace.

A finalizer keeps such a Checkpoint until an agent has removed its snapshot. All state is in the objects, so a successor
continues after a coordinator is killed at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.checkpoints_in_use import CheckpointsInUse
from cedana_sched.cluster.coordinator.removal_agent_choice import RemovalAgentChoice
from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Key
from cedana_sched.model import codec
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import DiscardCancelled, RemovalFailed, RemoveSnapshot, SnapshotRemoved
from cedana_sched.model.records import CheckpointStep
from cedana_sched.retrying import CHORES, Backoff

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 600.0
"""Then the Checkpoint is released without removal of its snapshot: an unresponsive store must not block a namespace
forever. Time without any node with an agent does not count: scaled-down nodes return."""
ANSWER_SECONDS = 60.0
"""After that the agent may be dead: another one gets the order."""
WRITES_AT_ONCE = 32
LEFT_SECONDS = 3600.0
"""A deleted, cancelled Checkpoint waits that long for the answer of its own node, which may have to thaw a pod. Then
any node does the cleanup of the store."""

_ORDERS = (RemoveSnapshot.__name__, DiscardCancelled.__name__)


class CheckpointFinalizer:
    """Controller of deleted Checkpoints. Run `run` as a task.

    Args:
        api: may patch Checkpoints.
        checkpoints: all of the cluster.
        by_snapshot: the same by their snapshots.
        nodes: all of the cluster.
        in_use: checkpoints that must stay for now.
        stop_writing: makes the projection stop writing the record of that uid.
        is_gone: whether retention has already removed a snapshot of the namespace with that uid.
        events: publishes snapshots that stay.
    """

    def __init__(
        self,
        api: Api,
        checkpoints: Informer[KnownCheckpoint],
        by_snapshot: CheckpointsBySnapshot,
        nodes: Informer[Node],
        in_use: CheckpointsInUse,
        *,
        stop_writing: Callable[[str], None],
        is_gone: Callable[[SnapshotRef, str], bool],
        events: EventRecorder,
    ) -> None:
        self._api = api
        self._checkpoints = checkpoints
        self._by_snapshot = by_snapshot
        self._removers = RemovalAgentChoice(nodes)
        self._in_use = in_use
        self._stop_writing = stop_writing
        self._is_gone = is_gone
        self._events = events
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self._wakes: dict[Key, asyncio.Event] = {}
        """By Checkpoint that is being handled."""

    async def run(self) -> None:
        """Purge, forever."""
        await self._in_use.loaded.wait()
        await self._checkpoints.synced.wait()
        await self._removers.synced.wait()
        async with asyncio.TaskGroup() as group:

            def on_checkpoint_change(before: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
                if (known := now or before) is None:
                    return
                key = known.metadata.namespace, known.metadata.name
                if wake := self._wakes.get(key):
                    wake.set()
                elif now is not None and (_is_to_go(now) or _is_missing_finalizer(now)):
                    self._wakes[key] = asyncio.Event()
                    group.create_task(self._reconcile_checkpoint(key), name=f"purge of {'/'.join(key)}")

            self._checkpoints.subscribe(on_checkpoint_change)
            self._in_use.subscribe(self._wake_all)
            self._removers.subscribe(self._wake_all)
            try:
                for checkpoint in self._checkpoints:
                    on_checkpoint_change(None, checkpoint)
                await asyncio.Event().wait()
            finally:
                self._checkpoints.unsubscribe(on_checkpoint_change)
                self._in_use.unsubscribe(self._wake_all)
                self._removers.close()

    def _wake_all(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    async def _reconcile_checkpoint(self, key: Key) -> None:
        structlog.contextvars.bind_contextvars(checkpoint="/".join(key))
        try:
            is_purged = False
            while (one := self._current_checkpoint(key)) is not None:
                if _is_missing_finalizer(one):
                    await self._write(one, metadata={"finalizers": [*one.metadata.finalizers, names.SNAPSHOT_CLEANUP]})
                elif not _is_to_go(one):
                    return
                elif is_purged:
                    others = [name for name in one.metadata.finalizers if name != names.SNAPSHOT_CLEANUP]
                    await self._write(one, metadata={"finalizers": others})
                elif (
                    _is_finished_by_coordinator(one) or _seconds_until_reassignment(one) == 0
                ) and not self._in_use.is_needed(one):
                    self._stop_writing(one.spec.uid)
                    await self._remove_snapshot(key, one)
                    is_purged = True
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        None if _is_finished_by_coordinator(one) else _seconds_until_reassignment(one)
                    ):
                        await self._wakes[key].wait()
        except Exception:  # a defect of one object must not block others; its next change retries it
            log.exception("handling the deletion of a Checkpoint failed")
        finally:
            del self._wakes[key]

    def _current_checkpoint(self, key: Key) -> KnownCheckpoint | None:
        """Return the current object; each later change sets its event."""
        self._wakes[key].clear()
        namespace, name = key
        return self._checkpoints.get(name, namespace)

    async def _remove_snapshot(self, key: Key, one: KnownCheckpoint) -> None:
        """Remove its snapshot, unless no order is needed. Gives up after `PATIENCE_SECONDS`, and reports that."""
        if (order := self._removal_order_of(one)) is None:
            return
        what = _describe_removal(order)
        problems = ["no agent has answered"]
        try:
            async with asyncio.timeout(None) as patience:
                await self._order_until_removed(key, order, patience, problems)
        except TimeoutError:
            text = f"Snapshot {what} stays in the store, and nothing will remove it by itself: {problems[-1]}"
            log.error("snapshot not removed", snapshot=what, error=problems[-1])  # noqa: TRY400  # no traceback needed
            reference = CHECKPOINTS.reference(one.metadata.name, one.metadata.namespace, one.metadata.uid)
            self._events.record_event(ObjectEvent(reference, "SnapshotRemovalFailed", text, warning=True))
        else:
            log.info("snapshot removed", snapshot=what)

    def _removal_order_of(self, one: KnownCheckpoint) -> RemoveSnapshot | DiscardCancelled | None:
        """Return what to remove from the store; None: nothing."""
        if one.unanswered_end_time is not None:
            return DiscardCancelled(one.spec.uid, one.identity)
        if (ref := one.snapshot) is None or self._is_gone(ref, one.spec.namespace_uid):
            return None
        if any(not other.is_deleted for other in self._by_snapshot.objects_of(ref)):
            return None
        return RemoveSnapshot(one.spec.uid, ref)

    async def _order_until_removed(
        self, key: Key, order: RemoveSnapshot | DiscardCancelled, patience: asyncio.Timeout, problems: list[str]
    ) -> None:
        """Order agents to remove it, one at a time, until one has, or the object is gone."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(CHORES)
        failed, tried = 0, set[str]()
        while (one := self._current_checkpoint(key)) is not None and not _is_removed(one):
            if (number := _failed_order_number(one)) > failed and one.status.answer is not None:
                failed = number
                problems.append(one.status.answer.outcome.why)
                tried.add(one.metadata.labels.get(names.NODE, ""))
                log.warning("snapshot not removed, trying again", snapshot=_describe_removal(order), error=problems[-1])
                await asyncio.sleep(backoff.next_pause())
                continue
            node = self._removers.choose_node(one, tried)
            if node is None:
                log.info("snapshot is removed as soon as a node has an agent again", snapshot=_describe_removal(order))
                patience.reschedule(None)
                await self._wakes[key].wait()
                continue
            if patience.when() is None:
                patience.reschedule(loop.time() + PATIENCE_SECONDS)
            await self._write_removal_order(one, node, order)
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._wakes[key].wait()
                    continue
            tried.add(node)

    async def _write_removal_order(
        self, one: KnownCheckpoint, node: str, order: RemoveSnapshot | DiscardCancelled
    ) -> None:
        """Do one write towards a standing order addressed to that node.

        Initially the order is written first, so that no agent reads a stale one; later the address is, so that the
        agent that just failed does not take the order.
        """
        labels = {names.NODE: node, names.REMOVE_SNAPSHOT: "true"}
        is_addressed = labels.items() <= one.metadata.labels.items()
        is_first = names.REMOVE_SNAPSHOT not in one.metadata.labels
        if not _is_ordered(one) and (is_addressed or is_first):
            given = {"number": _last_number(one) + 1, "order": codec.to_builtins(order)}
            await self._write(one, "status", status={"order": given})
        elif not is_addressed:
            await self._write(one, metadata={"labels": {**labels, names.ARCHIVED: None}})

    async def _write(self, one: KnownCheckpoint, subresource: str | None = None, **patch: Object) -> None:
        """Patch it, with its resourceVersion as precondition; after a conflict, the next change retries."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": one.metadata.resource_version}
        body = {**patch, "metadata": metadata}
        backoff = Backoff(CHORES)
        while True:
            try:
                async with self._writes:
                    await self._api.patch(
                        CHECKPOINTS, one.metadata.name, one.metadata.namespace, body, subresource=subresource
                    )
            except (ConflictError, AbsentError):
                return
            except ApiError as error:
                pause = backoff.next_pause()
                log.warning("checkpoint not written, trying again", error=str(error), pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return


def _is_to_go(one: KnownCheckpoint) -> bool:
    return one.is_deleted and one.has_cleanup_finalizer


def _is_missing_finalizer(one: KnownCheckpoint) -> bool:
    """Whether it lacks our finalizer: an uninstallation removes the finalizers of Checkpoints that it keeps."""
    is_ready = one.status.step is CheckpointStep.READY and one.snapshot is not None
    return is_ready and not one.is_deleted and not one.has_cleanup_finalizer


def _is_finished_by_coordinator(one: KnownCheckpoint) -> bool:
    """Whether the coordinator has finished with it."""
    return one.is_confirmed or one.is_archived


def _seconds_until_reassignment(one: KnownCheckpoint) -> float | None:
    """Return the seconds until other nodes may replace its own; None if it does not wait for its node."""
    return (
        None
        if one.unanswered_end_time is None
        else max(0.0, one.unanswered_end_time + LEFT_SECONDS - SERVER_TIME.seconds())
    )


def _describe_removal(order: RemoveSnapshot | DiscardCancelled) -> str:
    """Describe what is removed, for users: the generation of a cancelled checkpoint is unknown."""
    return str(order.snapshot) if isinstance(order, RemoveSnapshot) else f"of {order.identity}"


def _is_ordered(one: KnownCheckpoint) -> bool:
    order, answer = one.status.order, one.status.answer
    is_answered = order is not None and answer is not None and answer.number >= order.number
    return order is not None and order.order.type in _ORDERS and not is_answered


def _is_removed(one: KnownCheckpoint) -> bool:
    """Whether the current order is answered with success: earlier answers do not count."""
    order, answer = one.status.order, one.status.answer
    if order is None or answer is None or order.order.type not in _ORDERS:
        return False
    return answer.number == order.number and answer.outcome.type == SnapshotRemoved.__name__


def _failed_order_number(one: KnownCheckpoint) -> int:
    """Return the number of the failed order; 0: none."""
    answer = one.status.answer
    return answer.number if answer is not None and answer.outcome.type == RemovalFailed.__name__ else 0


def _last_number(one: KnownCheckpoint) -> int:
    order, answer = one.status.order, one.status.answer
    return max(order.number if order else 0, answer.number if answer else 0)
