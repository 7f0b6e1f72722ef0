"""Indexes of records by uid, with incremental counters: barrier checks are O(1) in the number of members.

A preemption storm is thousands of holds and gangs whose members report one by one. The registry updates the counters;
the rules read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, Checkpoint, CheckpointStep, HoldStep, PreemptionHold

K = TypeVar("K", bound=Hashable)


class Index(Generic[K]):
    """Uids by key, in insertion order."""

    __slots__ = ("_uids",)

    def __init__(self) -> None:
        self._uids: dict[K, dict[str, None]] = {}

    def add(self, key: K, uid: str) -> None:
        self._uids.setdefault(key, {})[uid] = None

    def drop(self, key: K, uid: str) -> None:
        """Remove `uid`, if it is there."""
        uids = self._uids.get(key)
        if uids is not None and uids.pop(uid, uid) is None and not uids:
            del self._uids[key]

    def uids_of(self, key: K) -> Collection[str]:
        """Return the uids of a key, oldest first."""
        return self._uids.get(key, ())


class CheckpointSet:
    """The members of one set by uid, oldest first."""

    __slots__ = ("_steps", "obstacle", "uids")

    def __init__(self) -> None:
        self.uids: dict[str, None] = {}
        self._steps: Counter[CheckpointStep] = Counter()
        self.obstacle: str | None = None
        """The member that blocked the set's start at the last scan."""

    def update_member(self, before: Checkpoint | None, now: Checkpoint | None) -> None:
        """Count an added, changed or dropped member."""
        if before is not None:
            self._steps[before.step] -= 1
        if now is not None:
            self._steps[now.step] += 1
            self.uids[now.uid] = None
        elif before is not None:
            del self.uids[before.uid]

    def uids_from_obstacle(self) -> list[str]:
        """Return all uids, rotated so that the scan resumes at the last obstacle."""
        uids = list(self.uids)
        met = uids.index(self.obstacle) if self.obstacle in self.uids else 0
        return uids[met:] + uids[:met]

    def are_all(self, steps: Collection[CheckpointStep]) -> bool:
        """Return whether every member is at one of these steps."""
        return sum(self._steps[step] for step in steps) == len(self.uids)


class AwaitedClaims:
    """Restores (uids) that wait for another restore's claim on a snapshot to end."""

    def __init__(self) -> None:
        self._wanted: dict[str, SnapshotRef] = {}
        self._by_identity: Index[Identity] = Index()

    def add(self, uid: str, wanted: SnapshotRef) -> None:
        """Record that the restore waits for this snapshot."""
        self.drop(uid)
        self._wanted[uid] = wanted
        self._by_identity.add(wanted.identity, uid)

    def drop(self, uid: str) -> None:
        """Remove the restore's entry."""
        if (wanted := self._wanted.pop(uid, None)) is not None:
            self._by_identity.drop(wanted.identity, uid)

    def get(self, uid: str, default: SnapshotRef | None) -> SnapshotRef | None:
        """Return the snapshot that the restore waits for."""
        return self._wanted.get(uid, default)

    def restores_waiting_for(self, identity: Identity, freed: SnapshotRef | None) -> list[str]:
        """Return the restores that wait for a snapshot of this identity, or for the freed one."""
        waiting = list(self._by_identity.uids_of(identity))
        if freed is not None and freed.identity != identity:
            waiting += [uid for uid in self._by_identity.uids_of(freed.identity) if self._wanted[uid] == freed]
        return waiting


_Key = tuple[str, str | None, str]


def _release_group_key(hold: PreemptionHold) -> _Key:
    """Return the key of the release group."""
    return hold.adapter, hold.release_group, hold.uid if hold.release_group is None else ""


class ReleaseGroups:
    """Active holds by release group, and the checkpoints that each group waits for."""

    def __init__(self) -> None:
        self._holds: Index[_Key] = Index()
        self._awaited: Index[_Key] = Index()
        self._waiting: dict[str, _Key] = {}
        """Checkpoint uid to the group of the hold that names the checkpoint."""

    def active_holds_of(self, hold: PreemptionHold) -> tuple[str, ...]:
        """Return the uids of the group's active holds, including this one while active, oldest first."""
        return tuple(self._holds.uids_of(_release_group_key(hold)))

    def are_terminal(self, hold: PreemptionHold) -> bool:
        """Return whether no hold of the group waits for a checkpoint."""
        return not self._awaited.uids_of(_release_group_key(hold))

    def put_hold(
        self, before: PreemptionHold | None, now: PreemptionHold | None, checkpoints: dict[str, Checkpoint]
    ) -> None:
        """Count an added, changed or dropped hold."""
        was = before is not None and before.step is HoldStep.HOLDING
        holds = now is not None and now.step is HoldStep.HOLDING
        if before is not None and now is not None and was == holds and before.checkpoints is now.checkpoints:
            return
        if before is not None and was:
            for uid in before.checkpoints:
                self._forget(uid)
            if not holds:
                self._holds.drop(_release_group_key(before), before.uid)
        if now is not None and holds:
            self._holds.add(_release_group_key(now), now.uid)
            for uid in now.checkpoints:
                self._waiting[uid] = _release_group_key(now)
                self._update_awaited(uid, checkpoints.get(uid))

    def put_checkpoint(self, before: Checkpoint | None, now: Checkpoint | None) -> None:
        """Count an added, changed or dropped checkpoint."""
        if now is None:
            if before is not None:
                self._forget(before.uid)
        elif before is None or before.is_terminal is not now.is_terminal:
            self._update_awaited(now.uid, now)

    def _update_awaited(self, uid: str, checkpoint: Checkpoint | None) -> None:
        key = self._waiting.get(uid)
        if key is None:
            return
        if checkpoint is None or checkpoint.step in TERMINAL_CHECKPOINT_STEPS:
            self._awaited.drop(key, uid)
        else:
            self._awaited.add(key, uid)

    def _forget(self, uid: str) -> None:
        if (key := self._waiting.pop(uid, None)) is not None:
            self._awaited.drop(key, uid)
