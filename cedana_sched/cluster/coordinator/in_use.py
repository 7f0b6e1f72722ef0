"""What may not go yet, though somebody has deleted it: evictions and returns that are under way need it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from cedana_sched.cluster.coordinator.known import KnownCheckpoint
from cedana_sched.model.identity import SnapshotRef, may_be_one_namespace
from cedana_sched.model.records import HoldStep, PreemptionHold, Record, Restore, RestoreStep

_FETCHING = {RestoreStep.STAGING, RestoreStep.RESTORING}


class InUse:
    """Call `recorded` with everything that is saved, and first with all that there is: this sets `loaded`."""

    def __init__(self) -> None:
        self.loaded = asyncio.Event()
        self._held: dict[str, tuple[str, ...]] = {}
        """Checkpoints (uids) by the hold that waits for them."""
        self._claimed: dict[str, tuple[SnapshotRef, str]] = {}
        """By the restore that is fetching it; and the uid of its namespace."""
        self._sinks: list[Callable[[], None]] = []

    def subscribe(self, sink: Callable[[], None]) -> None:
        """`sink` is called when something is not needed any more."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Callable[[], None]) -> None:
        self._sinks.remove(sink)

    def is_needed(self, checkpoint: KnownCheckpoint) -> bool:
        """Whether its eviction waits for it, or a restore is fetching its snapshot.

        A restore that chooses it after that finds it gone, and its policy says what follows.
        """
        uid, ref, namespace_uid = checkpoint.spec.uid, checkpoint.snapshot, checkpoint.spec.namespace_uid
        is_fetched = any(
            ref == claimed and may_be_one_namespace(of_uid, namespace_uid) for claimed, of_uid in self._claimed.values()
        )
        return is_fetched or any(uid in uids for uids in self._held.values())

    def recorded(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.Recorded`."""
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
