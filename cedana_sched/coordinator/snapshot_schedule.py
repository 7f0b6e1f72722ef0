"""When running workloads are saved periodically. Pure: no clock, no I/O.

The first snapshot of a workload follows its start by a fraction of the interval that depends on its uid, so that
workloads that start together are not saved together. Three rules bound what the snapshots cost:

    a workload      is frozen at most `max_frozen_percent` of its time, by the duration of its last snapshot
    a node          saves one workload, or one gang, at a time, and rests in between
    an eviction     comes first: a node that saves for one begins no periodic snapshot
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from math import inf

import msgspec
from msgspec.structs import replace

from cedana_sched.model.preemption import INTERVAL, AfterCommit, Signal, Verdict, Victim
from cedana_sched.model.records import Checkpoint, CheckpointStep, Record

MOST_BUSY_SHARE = 0.5
"""Of a node's time, so that at least half of its measured throughput is left to others: after each periodic snapshot it
begins no other one for as long as that took."""
MOST_DOUBLINGS = 6
"""Each consecutive failure doubles the interval, this many times."""
REPORT_SECONDS = 30.0
"""How long a reported snapshot may be without a record."""
SET_BACK_SECONDS = 30.0
"""Tolerated difference of two clocks; a larger step back means that the clock was wrong before."""

_FAILED = frozenset({Verdict.EVICT, Verdict.KEEP_RUNNING})
"""Verdicts on a failed snapshot that is neither retried nor was cancelled."""


class RunningWorkload(msgspec.Struct, frozen=True):
    """A workload that runs and has an interval, and what is known of its last snapshot beyond recent records."""

    victim: Victim
    saved_at: float | None = None
    """When its last snapshot was taken (epoch seconds); None: it has none, or none is known."""
    frozen_seconds: float = 0.0
    """How long that snapshot froze it."""


class DueSnapshots(msgspec.Struct, frozen=True):
    """Snapshots to take now, and when to look again (epoch seconds); None: after the next change."""

    signals: tuple[Signal, ...]
    next_at: float | None


class _Attempt(msgspec.Struct, frozen=True):
    """The last snapshot of a workload."""

    at: float = 0.0
    frozen_seconds: float = 0.0
    failures: int = 0
    """Consecutive ones."""


class SnapshotSchedule:
    """The schedule of all workloads. `on_records_saved` receives all records first, then every saved change."""

    def __init__(self, adapter: str) -> None:
        """Construct; signals name `adapter`."""
        self._adapter = adapter
        self._attempts: dict[str, _Attempt] = {}
        """By uid of the workload."""
        self._not_before: dict[str, float] = {}
        """By key of the set: not earlier than this. Spreads what was overdue when it was first seen."""
        self._busy: dict[str, str] = {}
        """Node by uid of the checkpoint in progress there: a periodic one, or one for an eviction."""
        self._stopped_by: dict[str, str] = {}
        """Uid of the workload by uid of the checkpoint that has stopped it: nothing to save until it is thawed."""
        self._rests_until: dict[str, float] = {}
        self._reported: dict[str, tuple[float, tuple[str, ...]]] = {}
        """Time and nodes by uid of a signal that has no record yet."""
        self._now = 0.0
        """The time of the last look."""

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record] = ()) -> None:
        """See `cluster.coordinator.journal.OnRecordsSaved`."""
        for record in records:
            if isinstance(record, Checkpoint):
                self._reported.pop(record.signal_uid, None)
                self._note_node(record)
                self._note_stop(record)
                self._note_attempt(record)
        for record in forgotten:
            self._busy.pop(record.uid, None)
            self._stopped_by.pop(record.uid, None)

    def find_due(self, running: Iterable[RunningWorkload], now: float) -> DueSnapshots:
        """Return what is due; each is returned once."""
        if self._now - now > SET_BACK_SECONDS:
            self._adopt_earlier_time(now)
        self._now = now
        known = _sets_of(running)
        self._drop_all_but(known)
        stopped = set(self._stopped_by.values())
        sets = {key: members for key, members in known.items() if stopped.isdisjoint(_uids_of(members))}
        self._reported = {uid: one for uid, one in self._reported.items() if now < one[0] + REPORT_SECONDS}
        due_at = {key: self._due_at(key, members, now) for key, members in sets.items()}
        busy = {node for _, of_signal in self._reported.values() for node in of_signal}.union(self._busy.values())
        signals: list[Signal] = []
        next_at = min((at + REPORT_SECONDS for at, _ in self._reported.values()), default=inf)
        for key in sorted(sets, key=lambda one: (due_at[one], one)):
            nodes = tuple(sorted({one.victim.workload.node for one in sets[key]}))
            at = max(due_at[key], *(self._rests_until.get(node, 0.0) for node in nodes))
            if at > now:
                next_at = min(next_at, at)
            elif busy.isdisjoint(nodes):
                busy.update(nodes)
                signal = self._signal_of(sets[key], now)
                self._reported[signal.uid] = (now, nodes)
                next_at = min(next_at, now + REPORT_SECONDS)
                signals.append(signal)
        return DueSnapshots(tuple(signals), None if next_at == inf else next_at)

    def _adopt_earlier_time(self, now: float) -> None:
        """Clamp what is remembered to a clock that was set back: otherwise nothing is due until it has caught up."""
        self._attempts = {uid: replace(one, at=min(one.at, now)) for uid, one in self._attempts.items()}
        self._rests_until = {node: min(at, now) for node, at in self._rests_until.items()}
        self._not_before = {}
        self._reported = {uid: (min(at, now), nodes) for uid, (at, nodes) in self._reported.items()}

    def _signal_of(self, members: Sequence[RunningWorkload], now: float) -> Signal:
        victims = tuple(one.victim for one in members)
        uid = f"periodic-{victims[0].workload.uid}-{now * 1000:.0f}"
        return Signal(uid, self._adapter, victims, INTERVAL, now, after_commit=AfterCommit.LEAVE_RUNNING)

    def _due_at(self, key: str, members: Sequence[RunningWorkload], now: float) -> float:
        interval = max(map(self._interval_of, members))
        spread = interval * _fraction_of(key)
        due = min(self._due_at_of_member(one, interval, spread, now) for one in members)
        overdue = min(max(now - due, 0.0), interval)
        return max(due, self._not_before.setdefault(key, now + overdue * _fraction_of(key)))

    def _due_at_of_member(self, one: RunningWorkload, interval: float, spread: float, now: float) -> float:
        """Return when it is due; a time that is yet to come was written by a clock that was wrong, and is unknown."""
        attempt = self._attempts.get(one.victim.workload.uid)
        times = (one.saved_at, attempt.at if attempt is not None else None)
        if saved := [at for at in times if at is not None and at <= now + SET_BACK_SECONDS]:
            return max(saved) + interval
        started_at = one.victim.started_at
        if started_at is None or started_at > now + SET_BACK_SECONDS:
            return now - interval  # overdue: it is spread from the first look on
        return started_at + spread

    def _interval_of(self, one: RunningWorkload) -> float:
        """Return the interval, as the costs of the last snapshot and its failures allow it."""
        attempt = self._attempts.get(one.victim.workload.uid) or _Attempt(frozen_seconds=one.frozen_seconds)
        policy = one.victim.policy
        bearable = attempt.frozen_seconds * 100 / policy.max_frozen_percent
        return float(max(policy.interval_seconds or inf, bearable) * 2.0**attempt.failures)

    def _note_node(self, checkpoint: Checkpoint) -> None:
        node = checkpoint.workload.node
        if not checkpoint.is_periodic and not checkpoint.is_stopped_after_commit:
            self._busy.pop(checkpoint.uid, None)
        elif not checkpoint.is_terminal:
            self._busy[checkpoint.uid] = node
        elif self._busy.pop(checkpoint.uid, None) and checkpoint.is_periodic and checkpoint.finished_at is not None:
            took = checkpoint.finished_at - (checkpoint.frozen_at or checkpoint.finished_at)
            rest = took * (1 / MOST_BUSY_SHARE - 1)
            self._rests_until[node] = max(self._rests_until.get(node, 0.0), checkpoint.finished_at + rest)

    def _note_stop(self, checkpoint: Checkpoint) -> None:
        if checkpoint.step is CheckpointStep.READY and checkpoint.is_stopped_after_commit:
            self._stopped_by[checkpoint.uid] = checkpoint.workload.uid
        else:
            self._stopped_by.pop(checkpoint.uid, None)

    def _note_attempt(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.is_terminal or checkpoint.is_stopped_after_commit:
            return
        uid = checkpoint.workload.uid
        known = self._attempts.get(uid, _Attempt())
        if checkpoint.created_at < known.at:
            return
        if checkpoint.step is CheckpointStep.READY:
            frozen, committed = checkpoint.frozen_at, checkpoint.committed_at
            seconds = committed - frozen if frozen is not None and committed is not None else 0.0
            self._attempts[uid] = _Attempt(checkpoint.created_at, seconds)
        elif checkpoint.is_periodic and checkpoint.verdict in _FAILED and checkpoint.created_at > known.at:
            failures = min(known.failures + 1, MOST_DOUBLINGS)
            self._attempts[uid] = replace(known, at=checkpoint.created_at, failures=failures)

    def _drop_all_but(self, sets: dict[str, list[RunningWorkload]]) -> None:
        uids = {one.victim.workload.uid for members in sets.values() for one in members}
        self._attempts = {uid: one for uid, one in self._attempts.items() if uid in uids}
        self._not_before = {key: at for key, at in self._not_before.items() if key in sets}


def _sets_of(running: Iterable[RunningWorkload]) -> dict[str, list[RunningWorkload]]:
    """Return the workloads that are saved together, by the uid of their gang, or of the only one."""
    sets: dict[str, list[RunningWorkload]] = {}
    for one in running:
        sets.setdefault(one.victim.gang or one.victim.workload.uid, []).append(one)
    return sets


def _uids_of(members: Iterable[RunningWorkload]) -> Iterable[str]:
    return (one.victim.workload.uid for one in members)


def _fraction_of(key: str) -> float:
    """Return a number from 0 to 1 that is always the same for a key, and spread evenly over all keys."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) / 2**32
