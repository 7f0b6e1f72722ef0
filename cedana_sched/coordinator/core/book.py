"""In-memory records and their indexes; the only place that changes a record, as the transition tables allow.

The rules (checkpoints, holds, restores) read the book freely and write through `add`, `move_*` and `update`. The
changes since the last `take_changes` make up the next `Persist`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from cedana_sched.coordinator.core.groups import CheckpointSet, Companions
from cedana_sched.coordinator.core.transitions import CHECKPOINT, HOLD, RESTORE, Cause, advance
from cedana_sched.model.identity import Identity, SnapshotRef, may_be_one_namespace
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import (
    TERMINAL_CHECKPOINT_STEPS,
    TERMINAL_RESTORE_STEPS,
    Checkpoint,
    CheckpointStep,
    PreemptionHold,
    Record,
    Restore,
    RestoreStep,
    bounded,
)

HISTORY_LINES = 20

K = TypeVar("K")
Uids = dict[str, None]
"""Uids in insertion order."""


def set_key(checkpoint: Checkpoint) -> str:
    """Return the key of the checkpoint's set, which passes barriers together; without a gang, a set of its own."""
    if checkpoint.gang is None:
        return checkpoint.uid
    return f"{checkpoint.signal_uid}/{checkpoint.gang}/{checkpoint.attempt}"


def holds_identity(restore: Restore) -> bool:
    """Return whether processes of this workload may run or start under its identity."""
    return restore.step not in TERMINAL_RESTORE_STEPS or unconfirmed(restore)


def unconfirmed(restore: Restore) -> bool:
    """Return whether the restore failed but may run: its node is silent, or was restoring it when it was given up."""
    return restore.step is RestoreStep.FAILED and restore.finished_at is None


def claims(restore: Restore) -> SnapshotRef | None:
    """Return the snapshot claimed exclusively by this restore. A failed restore keeps its claim while it may run."""
    return None if restore.finished_at is not None else restore.snapshot


class Book:
    """All records by uid, with the indexes that the rules need.

    A namespace may be deleted and recreated under the same name. Lookups by identity therefore take a workload, and
    exclude records of another namespace uid.
    """

    def __init__(self) -> None:
        self.checkpoints: dict[str, Checkpoint] = {}
        self.holds: dict[str, PreemptionHold] = {}
        self.restores: dict[str, Restore] = {}
        self.touched: dict[str, None] = {}
        """Uids of records still to be reconciled, in order."""
        self._sets: dict[str, CheckpointSet] = {}
        self._by_workload: dict[str, Uids] = {}
        self._by_identity: dict[Identity, Uids] = {}
        self._by_signal: dict[str, Uids] = {}
        self._by_node: dict[str, Uids] = {}
        self._restores_by_identity: dict[Identity, Uids] = {}
        self._restores_by_node: dict[str, Uids] = {}
        self._restores_naming: dict[Identity, Uids] = {}
        self._restore_of: dict[str, str] = {}
        self._companions = Companions()
        self._changed: dict[str, Record] = {}
        self._forgotten: dict[str, Record] = {}
        self._history: dict[str, deque[str]] = {}

    # -- reads

    def members(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Return every member of the checkpoint's set, including the checkpoint."""
        return [self.checkpoints[uid] for uid in self._sets[set_key(checkpoint)].uids]

    def set_of(self, checkpoint: Checkpoint) -> CheckpointSet:
        """Return the checkpoint's set with its counters."""
        return self._sets[set_key(checkpoint)]

    def of_workload(self, workload_uid: str) -> list[Checkpoint]:
        """Return all retained checkpoints of one workload, oldest first."""
        return [self.checkpoints[uid] for uid in self._by_workload.get(workload_uid, ())]

    def of_identity(self, identity: Identity, workload: WorkloadRef) -> list[Checkpoint]:
        """Return all retained checkpoints of one identity in the workload's namespace, oldest first."""
        found = (self.checkpoints[uid] for uid in self._by_identity.get(identity, ()))
        return [one for one in found if _may_share_namespace(one, workload)]

    def of_signal(self, signal_uid: str) -> list[Checkpoint]:
        """Return all retained checkpoints of one signal, oldest first."""
        return [self.checkpoints[uid] for uid in self._by_signal.get(signal_uid, ())]

    def of_hold(self, hold: PreemptionHold) -> list[Checkpoint]:
        """Return the checkpoints that the hold names, except those whose record was lost with its object."""
        return [known for uid in hold.checkpoints if (known := self.checkpoints.get(uid)) is not None]

    def on_node(self, node: str) -> list[Checkpoint]:
        """Return all retained checkpoints of workloads on one node."""
        return [self.checkpoints[uid] for uid in self._by_node.get(node, ())]

    def restores_on_node(self, node: str) -> list[Restore]:
        """Return all retained restores on one node."""
        return [self.restores[uid] for uid in self._restores_by_node.get(node, ())]

    def restores_naming(self, identity: Identity, workload: WorkloadRef) -> list[Restore]:
        """Return the restores in the workload's namespace that claimed or requested a snapshot of this identity."""
        found = (self.restores[uid] for uid in self._restores_naming.get(identity, ()))
        return [one for one in found if _may_share_namespace(one, workload)]

    def restore_of(self, workload_uid: str) -> Restore | None:
        """Return the latest restore of one workload; None if its start was not reported."""
        uid = self._restore_of.get(workload_uid)
        return None if uid is None else self.restores[uid]

    def lineage(self, workload_uid: str) -> Lineage:
        """Return the lineage of a workload. A workload without a restore started from scratch."""
        restore = self.restore_of(workload_uid)
        if restore is None:
            return Lineage(workload_uid)
        return Lineage(restore.uid, None if restore.cold else restore.snapshot)

    def restores_of(self, identity: Identity, workload: WorkloadRef) -> list[Restore]:
        """Return all retained restores of one identity in the workload's namespace, oldest first."""
        found = (self.restores[uid] for uid in self._restores_by_identity.get(identity, ()))
        return [one for one in found if _may_share_namespace(one, workload)]

    def stopped_by(self, workload_uid: str) -> Checkpoint | None:
        """Return the checkpoint with which this workload was committed and killed."""
        for checkpoint in self.of_workload(workload_uid):
            if checkpoint.step is CheckpointStep.READY and checkpoint.stops:
                return checkpoint
        return None

    def companions(self, hold: PreemptionHold) -> list[PreemptionHold]:
        """Return the active holds that are released with this one, including it while active, oldest first."""
        return [self.holds[uid] for uid in self._companions.of(hold)]

    def are_terminal(self, hold: PreemptionHold) -> bool:
        """Return whether neither the hold nor any of its companions waits for a checkpoint."""
        return self._companions.are_terminal(hold)

    def records(self) -> Iterator[Record]:
        """Iterate over all retained records."""
        yield from self.checkpoints.values()
        yield from self.holds.values()
        yield from self.restores.values()

    def get(self, uid: str) -> Record | None:
        """Return a record of any kind by uid."""
        return self.checkpoints.get(uid) or self.restores.get(uid) or self.holds.get(uid)

    def history(self, uid: str) -> tuple[str, ...]:
        """Return the last steps of one record, as text."""
        return tuple(self._history.get(uid, ()))

    # -- writes

    def add(self, record: Record, now: float, why: str) -> None:
        """Add a new record."""
        record = bounded(record)
        self.load(record)
        self._note(record.uid, now, f"{record.step}: {why}")
        self._changed[record.uid] = record

    def load(self, record: Record) -> None:
        """Add a record that is already persisted."""
        record = bounded(record)
        if isinstance(record, Checkpoint):
            self._sets.setdefault(set_key(record), CheckpointSet()).put(None, record)
            _add(self._by_workload, record.workload.uid, record.uid)
            _add(self._by_identity, record.identity, record.uid)
            _add(self._by_signal, record.signal_uid, record.uid)
            _add(self._by_node, record.workload.node, record.uid)
            self._companions.put_checkpoint(None, record)
            self.checkpoints[record.uid] = record
        elif isinstance(record, Restore):
            _add(self._restores_by_identity, record.identity, record.uid)
            _add(self._restores_by_node, record.workload.node, record.uid)
            latest = self.restore_of(record.workload.uid)
            if latest is None or latest.incarnation <= record.incarnation:  # clocks may have been set back
                self._restore_of[record.workload.uid] = record.uid
            self._put_restore(record)
        else:
            self._companions.put_hold(None, record, self.checkpoints)
            self.holds[record.uid] = record
        self.touched[record.uid] = None

    def move_checkpoint(self, record: Checkpoint, cause: Cause, now: float, **changes: Any) -> Checkpoint | None:
        """Take the transition that the table defines; None if the message is late and nothing changed."""
        step = advance(CHECKPOINT, record.step, cause, record.uid, self.history(record.uid))
        if step is None:
            return None
        if step in TERMINAL_CHECKPOINT_STEPS:
            changes["finished_at"] = now
        following = bounded(replace(record, step=step, **changes))
        self._put_checkpoint(following)
        self._moved(record, following, cause, now)
        return following

    def move_hold(self, record: PreemptionHold, cause: Cause, now: float, **changes: Any) -> PreemptionHold | None:
        """Take the transition that the table defines; None if the message is late and nothing changed."""
        step = advance(HOLD, record.step, cause, record.uid, self.history(record.uid))
        if step is None:
            return None
        following = bounded(replace(record, step=step, **changes))
        self._put_hold(following)
        self._moved(record, following, cause, now)
        return following

    def move_restore(self, record: Restore, cause: Cause, now: float, **changes: Any) -> Restore | None:
        """Take the transition that the table defines; None if the message is late and nothing changed."""
        step = advance(RESTORE, record.step, cause, record.uid, self.history(record.uid))
        if step is None:
            return None
        following = bounded(replace(record, step=step, **changes))
        self._put_restore(following)
        self._moved(record, following, cause, now)
        return following

    def update(self, record: Record, *, stored: bool = True) -> None:
        """Replace a record by one in the same step. `stored=False`: visible to readers, but not persisted."""
        record = bounded(record)
        if isinstance(record, Checkpoint):
            self._put_checkpoint(record)
        elif isinstance(record, Restore):
            self._put_restore(record)
        else:
            self._put_hold(record)
        if stored:
            self._changed[record.uid] = record

    def forget(self, record: Record) -> None:
        """Drop a terminal record."""
        uid = record.uid
        if isinstance(record, Checkpoint):
            members = self._sets[set_key(record)]
            members.put(self.checkpoints.pop(uid), None)
            if not members.uids:
                del self._sets[set_key(record)]
            _drop(self._by_workload, record.workload.uid, uid)
            _drop(self._by_identity, record.identity, uid)
            _drop(self._by_signal, record.signal_uid, uid)
            _drop(self._by_node, record.workload.node, uid)
            self._companions.put_checkpoint(record, None)
        elif isinstance(record, Restore):
            for identity in _named(self.restores.pop(uid)):
                _drop(self._restores_naming, identity, uid)
            _drop(self._restores_by_identity, record.identity, uid)
            _drop(self._restores_by_node, record.workload.node, uid)
            if self._restore_of.get(record.workload.uid) == uid:  # unless a later attempt has replaced it
                del self._restore_of[record.workload.uid]
        else:
            self._companions.put_hold(self.holds.pop(uid), None, self.checkpoints)
        self._history.pop(uid, None)
        self._changed.pop(uid, None)
        self.touched.pop(uid, None)
        self._forgotten[uid] = record

    def take_changes(self) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
        """Return the records to write and those to drop since the last call."""
        changed, forgotten = tuple(self._changed.values()), tuple(self._forgotten.values())
        self._changed.clear()
        self._forgotten.clear()
        return changed, forgotten

    def _put_checkpoint(self, now: Checkpoint) -> None:
        before = self.checkpoints[now.uid]
        self._sets[set_key(now)].step(before, now)
        self._companions.put_checkpoint(before, now)
        self.checkpoints[now.uid] = now

    def _put_hold(self, now: PreemptionHold) -> None:
        self._companions.put_hold(self.holds[now.uid], now, self.checkpoints)
        self.holds[now.uid] = now

    def _put_restore(self, now: Restore) -> None:
        before = self.restores.get(now.uid)
        gone = _named(before) - _named(now) if before is not None else ()
        for identity in gone:
            _drop(self._restores_naming, identity, now.uid)
        for identity in _named(now):
            _add(self._restores_naming, identity, now.uid)
        self.restores[now.uid] = now

    def _moved(self, before: Record, after: Record, cause: Cause, now: float) -> None:
        self._note(after.uid, now, f"{before.step} -> {after.step}: {cause}")
        self._changed[after.uid] = after
        self.touched[after.uid] = None

    def _note(self, uid: str, now: float, line: str) -> None:
        history = self._history.get(uid)
        if history is None:
            history = self._history[uid] = deque(maxlen=HISTORY_LINES)
        history.append(f"{now:.3f} {line}")


def _may_share_namespace(record: Checkpoint | Restore, workload: WorkloadRef) -> bool:
    """Compare namespace uids only; callers compare names: a snapshot may be requested from another namespace."""
    return may_be_one_namespace(record.workload.namespace_uid, workload.namespace_uid)


def _named(restore: Restore) -> set[Identity]:
    return {ref.identity for ref in (restore.snapshot, restore.requested_snapshot) if ref is not None}


def _add(index: dict[K, Uids], key: K, uid: str) -> None:
    index.setdefault(key, {})[uid] = None


def _drop(index: dict[K, Uids], key: K, uid: str) -> None:
    uids = index[key]
    del uids[uid]
    if not uids:
        del index[key]
