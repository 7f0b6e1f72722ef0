"""In-memory records and their indexes; the only place that changes a record, as the transition tables allow.

The rules (checkpoints, holds, restores) read the registry freely and write through `add`, `take_transition` and
`update`. The changes since the last `take_changes` make up the next `Persist`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from cedana_sched.coordinator.core.indexes import CheckpointSet, Index, ReleaseGroups
from cedana_sched.coordinator.core.transitions import CHECKPOINT, HOLD, RESTORE, Cause, Table, next_step_of
from cedana_sched.model.identity import Identity, SnapshotRef, may_be_same_namespace
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
    truncate_record_texts,
)

HISTORY_LINES = 20

R = TypeVar("R", bound=Record)
Placed = TypeVar("Placed", Checkpoint, Restore)


@dataclass(frozen=True, slots=True)
class _RecordsOfKind:
    """The registry's part for one type of records."""

    records: dict[str, Any]
    table: Table[Any]
    index: Callable[[Any, Any], None]
    """Updates the indexes for an added (None, now), changed (before, now) or dropped (before, None) record."""
    last_steps: Collection[str] = ()
    """Steps that set `finished_at`."""


def checkpoint_set_key(checkpoint: Checkpoint) -> str:
    """Return the key of the checkpoint's set, which passes barriers together; without a gang, a set of its own."""
    if checkpoint.gang is None:
        return checkpoint.uid
    return f"{checkpoint.signal_uid}/{checkpoint.gang}/{checkpoint.attempt}"


def holds_identity(restore: Restore) -> bool:
    """Return whether processes of this workload may run or start under its identity."""
    return restore.step not in TERMINAL_RESTORE_STEPS or is_unconfirmed(restore)


def is_unconfirmed(restore: Restore) -> bool:
    """Return whether the restore failed but may run: its node is silent, or was restoring it when it was given up."""
    return restore.step is RestoreStep.FAILED and restore.finished_at is None


def claimed_snapshot(restore: Restore) -> SnapshotRef | None:
    """Return the snapshot claimed exclusively by this restore. A failed restore keeps its claim while it may run."""
    return None if restore.finished_at is not None else restore.snapshot


class RecordRegistry:
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
        self._by_workload: Index[str] = Index()
        self._by_identity: Index[Identity] = Index()
        self._by_signal: Index[str] = Index()
        self._by_node: Index[str] = Index()
        self._restores_by_identity: Index[Identity] = Index()
        self._restores_by_node: Index[str] = Index()
        self._restores_naming: Index[Identity] = Index()
        self._restore_of: dict[str, str] = {}
        self._companions = ReleaseGroups()
        self._changed: dict[str, Record] = {}
        self._forgotten: dict[str, Record] = {}
        self._history: dict[str, deque[str]] = {}
        self._kinds: Mapping[type, _RecordsOfKind] = {
            Checkpoint: _RecordsOfKind(self.checkpoints, CHECKPOINT, self._index_checkpoint, TERMINAL_CHECKPOINT_STEPS),
            PreemptionHold: _RecordsOfKind(self.holds, HOLD, self._index_hold),
            Restore: _RecordsOfKind(self.restores, RESTORE, self._index_restore),
        }

    # -- reads

    def members_of_set(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Return every member of the checkpoint's set, including the checkpoint."""
        return [self.checkpoints[uid] for uid in self._sets[checkpoint_set_key(checkpoint)].uids]

    def checkpoint_set_of(self, checkpoint: Checkpoint) -> CheckpointSet:
        """Return the checkpoint's set with its counters."""
        return self._sets[checkpoint_set_key(checkpoint)]

    def checkpoints_of_workload(self, workload_uid: str) -> list[Checkpoint]:
        """Return all retained checkpoints of one workload, oldest first."""
        return [self.checkpoints[uid] for uid in self._by_workload.uids_of(workload_uid)]

    def checkpoints_of_identity(self, identity: Identity, workload: WorkloadRef) -> list[Checkpoint]:
        """Return all retained checkpoints of one identity in the workload's namespace, oldest first."""
        return _filter_by_namespace(self.checkpoints, self._by_identity.uids_of(identity), workload)

    def checkpoints_of_signal(self, signal_uid: str) -> list[Checkpoint]:
        """Return all retained checkpoints of one signal, oldest first."""
        return [self.checkpoints[uid] for uid in self._by_signal.uids_of(signal_uid)]

    def checkpoints_of_hold(self, hold: PreemptionHold) -> list[Checkpoint]:
        """Return the checkpoints that the hold names, except those whose record was lost with its object."""
        return [known for uid in hold.checkpoints if (known := self.checkpoints.get(uid)) is not None]

    def checkpoints_on_node(self, node: str) -> list[Checkpoint]:
        """Return all retained checkpoints of workloads on one node."""
        return [self.checkpoints[uid] for uid in self._by_node.uids_of(node)]

    def restores_on_node(self, node: str) -> list[Restore]:
        """Return all retained restores on one node."""
        return [self.restores[uid] for uid in self._restores_by_node.uids_of(node)]

    def restores_naming(self, identity: Identity, workload: WorkloadRef) -> list[Restore]:
        """Return the restores in the workload's namespace that claimed, resumed or requested a snapshot of this one."""
        return _filter_by_namespace(self.restores, self._restores_naming.uids_of(identity), workload)

    def latest_restore_of_workload(self, workload_uid: str) -> Restore | None:
        """Return the latest restore of one workload; None if its start was not reported."""
        uid = self._restore_of.get(workload_uid)
        return None if uid is None else self.restores[uid]

    def lineage(self, workload_uid: str) -> Lineage:
        """Return the lineage of a workload. A workload without a restore started from scratch."""
        restore = self.latest_restore_of_workload(workload_uid)
        if restore is None:
            return Lineage(workload_uid)
        return Lineage(restore.uid, None if restore.cold else restore.snapshot)

    def restores_of_identity(self, identity: Identity, workload: WorkloadRef) -> list[Restore]:
        """Return all retained restores of one identity in the workload's namespace, oldest first."""
        return _filter_by_namespace(self.restores, self._restores_by_identity.uids_of(identity), workload)

    def stopping_checkpoint_of(self, workload_uid: str) -> Checkpoint | None:
        """Return the checkpoint with which this workload was committed and killed."""
        for checkpoint in self.checkpoints_of_workload(workload_uid):
            if checkpoint.step is CheckpointStep.READY and checkpoint.is_stopped_after_commit:
                return checkpoint
        return None

    def holds_released_with(self, hold: PreemptionHold) -> list[PreemptionHold]:
        """Return the active holds that are released with this one, including it while active, oldest first."""
        return [self.holds[uid] for uid in self._companions.active_holds_of(hold)]

    def are_terminal(self, hold: PreemptionHold) -> bool:
        """Return whether neither the hold nor any of its companions waits for a checkpoint."""
        return self._companions.are_terminal(hold)

    def current_versions_of(self, listed: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
        """Yield each checkpoint as it is by then: the rules change some of them between two steps of a loop."""
        return (self.checkpoints[checkpoint.uid] for checkpoint in listed)

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
        record = truncate_record_texts(record)
        self.load(record)
        self._append_history(record.uid, now, f"{record.step}: {why}")
        self._changed[record.uid] = record

    def load(self, record: Record) -> None:
        """Add a record that is already persisted."""
        self._put(None, truncate_record_texts(record))
        self.mark_for_reconciliation(record.uid)

    def take_transition(self, record: R, cause: Cause, now: float, **changes: Any) -> R | None:
        """Take the transition that the table defines; None if the message is late and nothing changed."""
        kind = self._kinds[type(record)]
        step = next_step_of(kind.table, record.step, cause, record.uid, self.history(record.uid))
        if step is None:
            return None
        if step in kind.last_steps:
            changes["finished_at"] = now
        following = truncate_record_texts(replace(record, step=step, **changes))
        self._put(kind.records[record.uid], following)
        self._append_history(record.uid, now, f"{record.step} -> {step}: {cause}")
        self._changed[record.uid] = following
        self.mark_for_reconciliation(record.uid)
        return following

    def update(self, record: Record, *, stored: bool = True) -> None:
        """Replace a record by one in the same step. `stored=False`: visible to readers, but not persisted."""
        record = truncate_record_texts(record)
        self._put(self._kinds[type(record)].records[record.uid], record)
        if stored:
            self._changed[record.uid] = record

    def mark_for_reconciliation(self, uid: str) -> None:
        """Have a record reconciled in this turn."""
        self.touched[uid] = None

    def forget(self, record: Record) -> None:
        """Drop a terminal record."""
        uid, kind = record.uid, self._kinds[type(record)]
        kind.index(kind.records.pop(uid), None)
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

    def _put(self, before: Record | None, now: Record) -> None:
        kind = self._kinds[type(now)]
        kind.index(before, now)
        kind.records[now.uid] = now

    def _index_checkpoint(self, before: Checkpoint | None, now: Checkpoint | None) -> None:
        if now is not None:
            self._sets.setdefault(checkpoint_set_key(now), CheckpointSet()).update_member(before, now)
            if before is None:
                self._by_workload.add(now.workload.uid, now.uid)
                self._by_identity.add(now.identity, now.uid)
                self._by_signal.add(now.signal_uid, now.uid)
                self._by_node.add(now.workload.node, now.uid)
        elif before is not None:
            members = self._sets[checkpoint_set_key(before)]
            members.update_member(before, None)
            if not members.uids:
                del self._sets[checkpoint_set_key(before)]
            self._by_workload.drop(before.workload.uid, before.uid)
            self._by_identity.drop(before.identity, before.uid)
            self._by_signal.drop(before.signal_uid, before.uid)
            self._by_node.drop(before.workload.node, before.uid)
        self._companions.put_checkpoint(before, now)

    def _index_hold(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        self._companions.put_hold(before, now, self.checkpoints)

    def _index_restore(self, before: Restore | None, now: Restore | None) -> None:
        if now is not None:
            named, known = _named_identities(now), self.restores.get(now.uid)
            for identity in _named_identities(known) - named if known is not None else ():
                self._restores_naming.drop(identity, now.uid)
            for identity in named:
                self._restores_naming.add(identity, now.uid)
            if before is None:
                self._restores_by_identity.add(now.identity, now.uid)
                self._restores_by_node.add(now.workload.node, now.uid)
                latest = self.latest_restore_of_workload(now.workload.uid)
                if latest is None or latest.incarnation <= now.incarnation:  # clocks may have been set back
                    self._restore_of[now.workload.uid] = now.uid
        elif before is not None:
            for identity in _named_identities(before):
                self._restores_naming.drop(identity, before.uid)
            self._restores_by_identity.drop(before.identity, before.uid)
            self._restores_by_node.drop(before.workload.node, before.uid)
            if self._restore_of.get(before.workload.uid) == before.uid:  # unless a later attempt has replaced it
                del self._restore_of[before.workload.uid]

    def _append_history(self, uid: str, now: float, line: str) -> None:
        history = self._history.get(uid)
        if history is None:
            history = self._history[uid] = deque(maxlen=HISTORY_LINES)
        history.append(f"{now:.3f} {line}")


def _filter_by_namespace(records: Mapping[str, Placed], uids: Iterable[str], workload: WorkloadRef) -> list[Placed]:
    """Compare namespace uids only; callers compare names: a snapshot may be requested from another namespace."""
    of_uid = workload.namespace_uid
    found = (records[uid] for uid in uids)
    return [one for one in found if may_be_same_namespace(one.workload.namespace_uid, of_uid)]


def _named_identities(restore: Restore) -> set[Identity]:
    named = (restore.snapshot, restore.resumed_snapshot, restore.requested_snapshot)
    return {ref.identity for ref in named if ref is not None}
