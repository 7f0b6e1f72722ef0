"""Records in archived Checkpoints that a pod was restored from their snapshot (`status.resumed`).

The core records it in the Checkpoints that it tracks. Those that it has archived outlive the Restore, after whose
expiry nothing else would show that files in volumes may be ahead of the snapshot.
"""

from __future__ import annotations

from collections.abc import Collection

from cedana_sched.cluster.coordinator.archived_checkpoint_fields import ArchivedCheckpointField
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import SnapshotRef, may_be_same_namespace
from cedana_sched.model.records import Record, Restore


class ResumedSnapshots:
    """Writes of these Checkpoints. Run `run` as a task.

    Args:
        api: may patch the status of Checkpoints.
        checkpoints: all of the cluster.
        by_snapshot: their index.
    """

    def __init__(self, api: Api, checkpoints: Informer[KnownCheckpoint], by_snapshot: CheckpointsBySnapshot) -> None:
        self._by_snapshot = by_snapshot
        self._resumed: dict[str, tuple[SnapshotRef, str]] = {}
        """Snapshot and uid of its namespace, by uid of the Restore, as long as that is tracked."""
        self._of_snapshot: dict[SnapshotRef, dict[str, None]] = {}
        """Uids of these Restores."""
        self._field = ArchivedCheckpointField(
            api, checkpoints, field="resumed", what="mark of a resumed Checkpoint", is_due=self._is_due
        )

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        for record in records:
            if isinstance(record, Restore) and (ref := record.resumed_snapshot) and record.uid not in self._resumed:
                self._resumed[record.uid] = ref, record.workload.namespace_uid
                self._of_snapshot.setdefault(ref, {})[record.uid] = None
                for checkpoint in self._by_snapshot.objects_of(ref):
                    self._field.recheck(checkpoint)
        for record in forgotten:
            if (known := self._resumed.pop(record.uid, None)) is not None:
                uids = self._of_snapshot[known[0]]
                uids.pop(record.uid, None)
                if not uids:
                    del self._of_snapshot[known[0]]

    async def run(self) -> None:
        """Write, forever."""
        await self._field.run()

    def _is_due(self, one: KnownCheckpoint) -> bool:
        if (ref := one.snapshot) is None or one.status.resumed:
            return False
        restored_in = (self._resumed[uid][1] for uid in self._of_snapshot.get(ref, ()))
        return any(may_be_same_namespace(uid, one.spec.namespace_uid) for uid in restored_in)
