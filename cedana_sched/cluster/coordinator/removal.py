"""Checkpoints whose snapshots retention has removed go as well: what `kubectl get cckpt` shows can be continued."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from cedana_sched.cluster.coordinator.known import BySnapshot, KnownCheckpoint
from cedana_sched.coordinator.tasks import pauses
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError, ApiUnavailableError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.records import Checkpoint, Record

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class Removal:
    """Run `run` as a task. Objects that are still records go when they are forgotten, the others at once."""

    def __init__(self, api: Api, checkpoints: Mirror[KnownCheckpoint], by_snapshot: BySnapshot) -> None:
        self._api = api
        self._by_snapshot = by_snapshot
        self._removed: set[SnapshotRef] = set()
        self._queue: asyncio.Queue[Metadata] = asyncio.Queue()
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
                self._queue.put_nowait(now.metadata)
        elif before is not None and (ref := before.snapshot) is not None and not self._by_snapshot.of(ref):
            self._removed.discard(ref)

    async def run(self) -> None:
        """Remove objects, for ever."""
        while True:
            one = await self._queue.get()
            for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
                try:
                    await self._api.delete(CHECKPOINTS, one.name, one.namespace, uid=one.uid)
                except ApiUnavailableError as error:
                    log.warning("checkpoint not removed, trying again", problem=error.message, pause_seconds=pause)
                    await asyncio.sleep(pause)
                    continue
                except ApiError as error:
                    log.warning("checkpoint not removed", checkpoint=one.name, problem=error.message)
                break
