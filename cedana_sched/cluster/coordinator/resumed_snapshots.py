"""Records in archived Checkpoints that a pod was restored from their snapshot (`status.resumed`).

The core records it in the Checkpoints that it tracks. Those that it has archived outlive the Restore, after whose
expiry nothing else would show that files in volumes may be ahead of the snapshot.
"""

from __future__ import annotations

from collections.abc import Collection

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.watching import Informer, Key
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.identity import SnapshotRef, may_be_same_namespace
from cedana_sched.model.objects.checkpoint import CheckpointStatus
from cedana_sched.model.records import Record, Restore

_PATCH: Object = {"status": {CheckpointStatus.wire_name("resumed"): True}}


class ResumedSnapshots:
    """Writes of these Checkpoints. Run `run` as a task.

    Args:
        api: may patch the status of Checkpoints.
        checkpoints: all of the cluster.
        by_snapshot: their index.
    """

    def __init__(self, api: Api, checkpoints: Informer[KnownCheckpoint], by_snapshot: CheckpointsBySnapshot) -> None:
        self._api = api
        self._checkpoints = checkpoints
        self._by_snapshot = by_snapshot
        self._resumed: dict[str, tuple[SnapshotRef, str]] = {}
        """Snapshot and uid of its namespace, by uid of the Restore, as long as that is tracked."""
        self._of_snapshot: dict[SnapshotRef, dict[str, None]] = {}
        """Uids of these Restores."""
        self._queue: WorkQueue[Key] = WorkQueue("mark of a resumed Checkpoint", self._mark, group_of=lambda key: key[0])
        checkpoints.subscribe(self._on_checkpoint_changed)

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        for record in records:
            if isinstance(record, Restore) and (ref := record.resumed_snapshot) and record.uid not in self._resumed:
                self._resumed[record.uid] = ref, record.workload.namespace_uid
                self._of_snapshot.setdefault(ref, {})[record.uid] = None
                for checkpoint in self._by_snapshot.objects_of(ref):
                    self._on_checkpoint_changed(None, checkpoint)
        for record in forgotten:
            if (known := self._resumed.pop(record.uid, None)) is not None:
                uids = self._of_snapshot[known[0]]
                uids.pop(record.uid, None)
                if not uids:
                    del self._of_snapshot[known[0]]

    async def run(self) -> None:
        """Write, forever."""
        await self._queue.run()

    def _on_checkpoint_changed(self, _: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
        if now is not None and self._is_to_be_marked(now):
            self._queue.add((now.metadata.namespace, now.metadata.name))

    def _is_to_be_marked(self, one: KnownCheckpoint) -> bool:
        if (ref := one.snapshot) is None or one.status.resumed or not one.is_archived or one.is_deleted:
            return False
        restored_in = (self._resumed[uid][1] for uid in self._of_snapshot.get(ref, ()))
        return any(may_be_same_namespace(uid, one.spec.namespace_uid) for uid in restored_in)

    async def _mark(self, key: Key) -> None:
        namespace, name = key
        one = self._checkpoints.get(name, namespace)
        if one is not None and self._is_to_be_marked(one):
            await patch_same(self._api, CHECKPOINTS, one.metadata, _PATCH, subresource="status")
