"""Deletes Checkpoints whose snapshots retention has removed, so that `kubectl get cckpt` lists restorable ones."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.watching import Informer, Key
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.identity import SnapshotRef, may_be_same_namespace
from cedana_sched.model.records import Checkpoint, Record

log = structlog.get_logger(__name__)


class RetentionCleanup:
    """Deletion of such Checkpoints: when their records are archived, else at once. Run `run` as a task."""

    def __init__(self, api: Api, checkpoints: Informer[KnownCheckpoint], by_snapshot: CheckpointsBySnapshot) -> None:
        self._api = api
        self._by_snapshot = by_snapshot
        self._removed: dict[SnapshotRef, str] = {}
        """Value: uid of the namespace; in a namespace recreated under the same name, generations count from 1."""
        self._checkpoints = checkpoints
        self._queue: WorkQueue[Key] = WorkQueue("removal of a Checkpoint", self._remove)
        checkpoints.subscribe(self._on_checkpoint_changed)

    def on_snapshots_removed(self, refs: Collection[SnapshotRef], namespace_uid: str) -> None:
        """Record that these snapshots of the namespace with this uid have been removed; empty uid: any of that name."""
        self._removed |= dict.fromkeys(refs, namespace_uid)
        for ref in refs:
            for checkpoint in self._by_snapshot.objects_of(ref):
                self._on_checkpoint_changed(None, checkpoint)

    def has_removed_snapshot(self, record: Record) -> bool:
        """Whether the snapshot of a checkpoint that is being archived is gone: then its object is deleted, too."""
        if not isinstance(record, Checkpoint) or record.snapshot is None:
            return False
        return self.is_snapshot_removed(record.snapshot, record.workload.namespace_uid)

    def is_snapshot_removed(self, ref: SnapshotRef, namespace_uid: str) -> bool:
        """Whether retention has removed it in the namespace with this uid, and its object still exists."""
        removed_in = self._removed.get(ref)
        return removed_in is not None and may_be_same_namespace(removed_in, namespace_uid)

    def _on_checkpoint_changed(self, before: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
        if now is not None:
            if self._is_to_go(now):
                self._queue.add((now.metadata.namespace, now.metadata.name))
        elif before is not None and (ref := before.snapshot) is not None and not self._by_snapshot.objects_of(ref):
            self._removed.pop(ref, None)

    async def run(self) -> None:
        """Delete objects, forever."""
        await self._queue.run()

    def _is_to_go(self, one: KnownCheckpoint) -> bool:
        if one.snapshot is None or not one.is_archived or one.is_deleted:
            return False
        return self.is_snapshot_removed(one.snapshot, one.spec.namespace_uid)

    async def _remove(self, key: Key) -> None:
        namespace, name = key
        one = self._checkpoints.get(name, namespace)
        if one is None or not self._is_to_go(one):
            return
        try:
            await self._api.delete(CHECKPOINTS, name, namespace, uid=one.metadata.uid)
        except ConflictError as error:  # another object has its name
            log.info("checkpoint not removed", checkpoint=name, error=error.message)
