"""An indexed cache of the coordinator's records, with notifications of changes.

The cache wraps the journal: it applies each save to its indexes too, and wakes tasks that wait for a checkpoint to
become terminal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from cedana_sched.coordinator.ports import Journal
from cedana_sched.model.orders import Progress
from cedana_sched.model.records import Checkpoint, PreemptionHold, Record, Restore

T = TypeVar("T")


class RecordCache:
    """A write-through cache of a `Journal`. `on_change` is called with the saved records after each save."""

    def __init__(self, journal: Journal, on_change: Callable[[tuple[Record, ...]], None]) -> None:
        self._journal = journal
        self._on_change = on_change
        self._records: dict[str, Record] = {}
        self._of_workload: dict[str, dict[str, Checkpoint | Restore]] = defaultdict(dict)
        self._of_signal: dict[str, dict[str, Checkpoint]] = defaultdict(dict)
        self._changed = asyncio.Condition()

    async def load(self) -> tuple[Record, ...]:
        """See `Journal.load`."""
        records = await self._journal.load()
        for record in records:
            self._put(record)
        return records

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """See `Journal.save`."""
        await self._journal.save(records, forget)
        for record in forget:
            self._drop(record)
        for record in records:
            self._put(record)
        self._on_change(records)
        async with self._changed:
            self._changed.notify_all()

    def all(self) -> tuple[Record, ...]:
        """Return all cached records."""
        return tuple(self._records.values())

    def _put(self, record: Record) -> None:
        self._records[record.uid] = record
        if not isinstance(record, PreemptionHold):
            self._of_workload[record.workload.uid][record.uid] = record
        if isinstance(record, Checkpoint):
            self._of_signal[record.signal_uid][record.uid] = record

    def _drop(self, record: Record) -> None:
        self._records.pop(record.uid, None)
        if not isinstance(record, PreemptionHold):
            _remove_from_index(self._of_workload, record.workload.uid, record.uid)
        if isinstance(record, Checkpoint):
            _remove_from_index(self._of_signal, record.signal_uid, record.uid)

    def update_progress(self, progress: Progress) -> Checkpoint | None:
        """Update a dump's progress in the cache only; return the checkpoint, or None if it is no longer in flight."""
        checkpoint = self._records.get(progress.checkpoint_uid)
        if not isinstance(checkpoint, Checkpoint) or checkpoint.is_terminal or checkpoint.committed_at is not None:
            return None
        moved = replace(checkpoint, transfer=progress.transfer)
        self._put(moved)
        return moved

    def newest_restore_of(self, workload_uid: str) -> Restore | None:
        """Return the newest Restore of a run."""
        found = (r for r in self._of_workload.get(workload_uid, {}).values() if isinstance(r, Restore))
        return max(found, key=lambda restore: restore.created_at, default=None)

    def newest_checkpoint_of(self, workload_uids: frozenset[str]) -> Checkpoint | None:
        """Return the newest checkpoint of any of these runs."""
        records = (record for uid in workload_uids for record in self._of_workload.get(uid, {}).values())
        found = (record for record in records if isinstance(record, Checkpoint))
        return max(found, key=lambda checkpoint: (checkpoint.created_at, checkpoint.attempt), default=None)

    def preemptor_of(self, checkpoint: Checkpoint) -> str | None:
        """Return the preemptor for which the workload was evicted; None if there was none."""
        hold = self._records.get(checkpoint.signal_uid)
        return hold.preemptor if isinstance(hold, PreemptionHold) else None

    def checkpoints_if_terminal(self, signal_uid: str) -> tuple[Checkpoint, ...] | None:
        """Return the last attempts of a signal's checkpoints if all of them are terminal, else None."""
        last: dict[str, Checkpoint] = {}
        for checkpoint in self._of_signal.get(signal_uid, {}).values():
            other = last.get(checkpoint.workload.uid)
            if other is None or checkpoint.attempt > other.attempt:
                last[checkpoint.workload.uid] = checkpoint
        checkpoints = tuple(last.values())
        return checkpoints if checkpoints and all(checkpoint.is_terminal for checkpoint in checkpoints) else None

    async def wait_until_terminal(self, signal_uid: str) -> tuple[Checkpoint, ...]:
        """Wait until all checkpoints of a signal are terminal, at the latest at their deadline."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.checkpoints_if_terminal(signal_uid) is not None)
        return self.checkpoints_if_terminal(signal_uid) or ()


def _remove_from_index(index: dict[str, dict[str, T]], key: str, uid: str) -> None:
    found = index.get(key, {})
    found.pop(uid, None)
    if not found:
        index.pop(key, None)
