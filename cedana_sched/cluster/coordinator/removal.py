"""Checkpoints whose snapshots retention has removed go as well: what `kubectl get cckpt` shows can be continued."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from cedana_sched.cluster.coordinator.known import BySnapshot, KnownCheckpoint
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.watching import Mirror
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.records import Checkpoint, Record

log = structlog.get_logger(__name__)


class Removal:
    """Run `run` as a task. Objects that are still records go when they are forgotten, the others at once."""

    def __init__(self, api: Api, checkpoints: Mirror[KnownCheckpoint], by_snapshot: BySnapshot) -> None:
        self._api = api
        self._by_snapshot = by_snapshot
        self._removed: set[SnapshotRef] = set()
        self._doomed: dict[str, Metadata] = {}
        """By uid."""
        self._queue = WorkQueue("removal of a Checkpoint", self._remove)
        checkpoints.subscribe(self._heard)

    def removed(self, refs: Collection[SnapshotRef]) -> None:
        """These are not in the store any more."""
        self._removed.update(refs)
        for ref in refs:
            for checkpoint in self._by_snapshot.of(ref):
                self._heard(None, checkpoint)

    def is_removed(self, record: Record) -> bool:
        """Whether the snapshot of a checkpoint that is being forgotten is gone: then its object goes, too."""
        return isinstance(record, Checkpoint) and record.snapshot is not None and self.is_gone(record.snapshot)

    def is_gone(self, ref: SnapshotRef) -> bool:
        """Whether retention has removed it, and its object is still there."""
        return ref in self._removed

    def _heard(self, before: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
        if now is not None:
            if now.is_forgotten and not now.is_deleted and now.snapshot in self._removed:
                self._doomed[now.metadata.uid] = now.metadata
                self._queue.add(now.metadata.uid)
        elif before is not None and (ref := before.snapshot) is not None and not self._by_snapshot.of(ref):
            self._removed.discard(ref)

    async def run(self) -> None:
        """Remove objects, for ever."""
        await self._queue.run()

    async def _remove(self, key: str) -> None:
        if (one := self._doomed.get(key)) is None:
            return
        try:
            await self._api.delete(CHECKPOINTS, one.name, one.namespace, uid=one.uid)
        except ConflictError:  # it is gone, and another one has its name
            log.info("checkpoint was removed by somebody else", checkpoint=one.name)
        self._doomed.pop(key, None)
