"""Deleted Checkpoints that must stay for now, because evictions or restores in flight need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.model.identity import SnapshotRef, may_be_same_namespace
from cedana_sched.model.records import HoldStep, PreemptionHold, Record, Restore, RestoreStep

_FETCHING = {RestoreStep.STAGING, RestoreStep.RESTORING}


class CheckpointsInUse:
    """Index of needed checkpoints. `on_records_saved` receives all records (sets `loaded`), then each saved change."""

    def __init__(self) -> None:
        self.loaded = asyncio.Event()
        self._held: dict[str, tuple[str, ...]] = {}
        """Checkpoint uids by the hold that waits for them."""
        self._claimed: dict[str, tuple[SnapshotRef, str]] = {}
        """By the restore that fetches it: the snapshot, and the uid of its namespace."""
        self._sinks: list[Callable[[], None]] = []

    def subscribe(self, sink: Callable[[], None]) -> None:
        """Call `sink` when a checkpoint is no longer needed."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Callable[[], None]) -> None:
        self._sinks.remove(sink)

    def is_needed(self, checkpoint: KnownCheckpoint) -> bool:
        """Whether an eviction waits for it, or a restore fetches its snapshot.

        A restore that chooses it later finds it gone, and the policy decides what follows.
        """
        uid, ref, namespace_uid = checkpoint.spec.uid, checkpoint.snapshot, checkpoint.spec.namespace_uid
        is_fetched = any(
            ref == claimed and may_be_same_namespace(of_uid, namespace_uid)
            for claimed, of_uid in self._claimed.values()
        )
        return is_fetched or any(uid in uids for uids in self._held.values())

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        self.loaded.set()
        freed = False
        for record in (*records, *forgotten):
            if isinstance(record, PreemptionHold):
                held = record.checkpoints if record.step is HoldStep.HOLDING else ()
                freed |= self._held.pop(record.uid, held) != held
                if held:
                    self._held[record.uid] = held
            elif isinstance(record, Restore):
                ref, namespace_uid = record.snapshot, record.workload.namespace_uid
                claimed = (ref, namespace_uid) if ref is not None and record.step in _FETCHING else None
                freed |= self._claimed.pop(record.uid, claimed) != claimed
                if claimed is not None:
                    self._claimed[record.uid] = claimed
        if freed:
            for sink in tuple(self._sinks):
                sink()
