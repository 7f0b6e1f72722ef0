"""The coordinator's records as the rest of the engine asks for them, and the moments at which they change.

Stands between the coordinator and the journal: what is saved is remembered here too, and whoever waits for a
checkpoint to settle is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from cedana_sched.coordinator.ports import Journal
from cedana_sched.model.orders import Progress
from cedana_sched.model.records import Checkpoint, PreemptionHold, Record, Restore


class Records:
    """A `Journal` that also answers questions. `on_change` is called with what was saved, after it was."""

    def __init__(self, journal: Journal, on_change: Callable[[tuple[Record, ...]], None]) -> None:
        self._journal = journal
        self._on_change = on_change
        self._records: dict[str, Record] = {}
        self._changed = asyncio.Condition()

    async def load(self) -> tuple[Record, ...]:
        """See `Journal.load`."""
        records = await self._journal.load()
        self._records = {record.uid: record for record in records}
        return records

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """See `Journal.save`."""
        await self._journal.save(records, forget)
        for record in forget:
            self._records.pop(record.uid, None)
        self._records |= {record.uid: record for record in records}
        self._on_change(records)
        async with self._changed:
            self._changed.notify_all()

    def progressed(self, progress: Progress) -> Checkpoint | None:
        """Take in how far a dump is, which is not worth saving; returns the checkpoint if it is still under way."""
        checkpoint = self._records.get(progress.checkpoint_uid)
        if not isinstance(checkpoint, Checkpoint) or checkpoint.settled or checkpoint.committed_at is not None:
            return None
        moved = replace(checkpoint, transfer=progress.transfer)
        self._records[checkpoint.uid] = moved
        return moved

    def restore_of(self, workload_uid: str) -> Restore | None:
        """The start of a run."""
        found = (r for r in self._records.values() if isinstance(r, Restore) and r.workload.uid == workload_uid)
        return max(found, key=lambda restore: restore.created_at, default=None)

    def checkpoint_of(self, workload_uids: frozenset[str]) -> Checkpoint | None:
        """The newest checkpoint of any of these runs."""
        found = (c for c in self._records.values() if isinstance(c, Checkpoint) and c.workload.uid in workload_uids)
        return max(found, key=lambda checkpoint: (checkpoint.created_at, checkpoint.attempt), default=None)

    def preemptor_of(self, checkpoint: Checkpoint) -> str | None:
        """For whom the workload had to leave, if it was for somebody."""
        hold = self._records.get(checkpoint.signal_uid)
        return hold.preemptor if isinstance(hold, PreemptionHold) else None

    def settled(self, signal_uid: str) -> tuple[Checkpoint, ...] | None:
        """The last attempts of a signal's checkpoints if all are settled, else None."""
        last: dict[str, Checkpoint] = {}
        for record in self._records.values():
            if isinstance(record, Checkpoint) and record.signal_uid == signal_uid:
                other = last.get(record.workload.uid)
                if other is None or record.attempt > other.attempt:
                    last[record.workload.uid] = record
        checkpoints = tuple(last.values())
        return checkpoints if checkpoints and all(checkpoint.settled for checkpoint in checkpoints) else None

    async def until_settled(self, signal_uid: str) -> tuple[Checkpoint, ...]:
        """Wait for the end of what a signal asked for; it ends by its deadline."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.settled(signal_uid) is not None)
        return self.settled(signal_uid) or ()
