"""What the rules share: the records, the time of the turn, the timers, and the instructions produced."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from cedana_sched.coordinator.core.instructions import Instruction, PublishEvent, Send
from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.model.orders import Order
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Record

SET_BACK_SECONDS = 30.0
"""Tolerated step back without assuming a wrong clock: API server replicas' clocks differ."""
TEXT_LIMIT = 1000

_HAPPENED = ("created_at", "frozen_at", "committed_at", "finished_at", "released_at", "running_at")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The core's internal intervals, in seconds, for a cluster; tests shorten them.

    User-facing deadlines are in `CheckpointPolicy`.
    """

    resend: float = 30.0
    """Interval before an unanswered order is repeated; doubles up to `resend_most`."""
    resend_most: float = 300.0
    lost: float = 1.0
    """The same for an order known to be lost."""
    retry: float = 1.0
    """Backoff after the first failed, retryable attempt; doubles up to `retry_most`."""
    retry_most: float = 60.0
    confirm: float = 120.0
    """How long past its deadline an irreversible step (kill, abort) waits for the node's answer."""
    patience: float = 60.0
    """How long a workload with a pending kill may stay frozen, undeleted, after the last release of its evictions."""
    remember: float = 3600.0
    """Retention of terminal records; at least until their deadline."""

    remember_deaths: float = 7 * 86_400.0
    """The same for an identity's last restore with quick failures, or whose node was lost: the next one needs it."""

    def retry_backoff(self, attempt: int) -> float:
        """Return the backoff in seconds after failed attempt number `attempt` (from 1)."""
        return float(min(self.retry * 2.0 ** min(attempt - 1, 30), self.retry_most))

    def retry_backoff_within(self, attempt: int, seconds_left: float) -> float | None:
        """Return the backoff, at most half of the time left until a deadline; None if too little is left to retry."""
        pause = min(self.retry_backoff(attempt), seconds_left / 2)
        return pause if pause >= self.retry else None


class RecordTimers:
    """Timers of the records: one per uid, earliest first.

    A heap with lazy deletion: `set` and `pop_due` are O(log n) for each uid, amortised; `next_due_at` is amortised
    O(1).
    """

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, uid: str, at: float | None) -> None:
        """Set or replace the timer of `uid`; None removes it."""
        if at is None:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heapq.heappush(self._heap, (at, uid))

    def next_due_at(self) -> float | None:
        """Return the earliest time; None if no timer is set."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> list[str]:
        """Remove and return every uid whose time has come, earliest first."""
        due: list[str] = []
        while (at := self.next_due_at()) is not None and at <= now:
            _, uid = heapq.heappop(self._heap)
            del self._at[uid]
            due.append(uid)
        return due


class Turn:
    """One per core. `now` is the time of the turn in epoch seconds; only the machine sets it."""

    def __init__(self, timing: Timing) -> None:
        self.registry = RecordRegistry()
        self.timers = RecordTimers()
        self.timing = timing
        self.now = 0.0
        self.out: list[Instruction] = []
        self._repeat: dict[str, tuple[float, float]] = {}
        """By record: when its unanswered order is repeated, and the following interval."""

    # -- orders and their repetition

    def send_order(self, uid: str, node: str, order: Order) -> None:
        """Send the order that record `uid` waits on; repeated until the record's next transition."""
        self.out.append(Send(node, order))
        self.repeat_order_in(uid, self.timing.resend)

    def send_once(self, node: str, order: Order) -> None:
        """Send an order that no record waits on."""
        self.out.append(Send(node, order))

    def stop_repeating(self, uid: str) -> None:
        """Drop the repetition of the record's order: it is answered."""
        self._repeat.pop(uid, None)

    def defer_repetition(self, uid: str) -> None:
        """Restart the repetition interval: the agent is working on the order."""
        if uid in self._repeat:
            self.repeat_order_in(uid, self.timing.resend)

    def repeat_order_in(self, uid: str, seconds: float) -> None:
        """Repeat the record's order after `seconds`; the following intervals double."""
        self._repeat[uid] = (self.now + seconds, seconds)

    def next_repetition_at(self, uid: str) -> float | None:
        """Return when the record's order is repeated (epoch seconds); None if it waits on no order."""
        entry = self._repeat.get(uid)
        return entry[0] if entry else None

    def hasten_repetition(self, uid: str) -> None:
        """Schedule an early repetition of an order known to be lost, with exponential backoff."""
        if (entry := self._repeat.get(uid)) is not None:
            self.repeat_order_in(uid, entry[1] * 2 if entry[1] < self.timing.resend else self.timing.lost)

    def take_due_repetition(self, uid: str) -> bool:
        """Return whether the record's order must be repeated now; if so, double the interval."""
        entry = self._repeat.get(uid)
        if entry is None or self.now < entry[0]:
            return False
        self.repeat_order_in(uid, min(entry[1] * 2, self.timing.resend_most))
        return True

    # -- events for users

    def publish(self, event: PublishEvent | None) -> None:
        """Emit an event with the object and the victims of its preemption, if there is an event."""
        if event is None:
            return
        hold = self.registry.holds.get(event.signal_uid) if event.signal_uid is not None else None
        held = hold.held if hold is not None else None
        victims: tuple[WorkloadRef, ...] = ()
        if hold is not None and held is None and event.workload is None:
            victims = tuple(one.workload for one in self.registry.checkpoints_of_hold(hold))
        self.out.append(replace(event, text=event.text[:TEXT_LIMIT], held=held, victims=victims))

    # -- a clock that ran ahead

    def adopt_earlier_time(self, now: float) -> None:
        """Accept `now` as correct and clamp recorded times to it. The caller must set every record's timer again.

        Otherwise every preemption would be past its deadline, and records created meanwhile would wait, until the clock
        reaches those times again. The size of the error at each time is unknown, so times only move closer: past events
        have happened by now, and no deadline is further off than its policy allows.
        """
        self.now = now
        self._repeat = {uid: (min(at, now + pause), pause) for uid, (at, pause) in self._repeat.items()}
        granted: dict[str, float] = {}
        for checkpoint in self.registry.checkpoints.values():
            seconds = checkpoint.policy.deadline_seconds
            granted[checkpoint.signal_uid] = min(granted.get(checkpoint.signal_uid, seconds), seconds)
        for checkpoint in tuple(self.registry.checkpoints.values()):
            changes: dict[str, float] = {}
            if checkpoint.not_before is not None:
                changes["not_before"] = min(checkpoint.not_before, now + self.timing.retry_most)
            self._clamp_record_times(checkpoint, granted[checkpoint.signal_uid], changes)
        for hold in tuple(self.registry.holds.values()):
            self._clamp_record_times(hold, granted.get(hold.uid, 0.0), {})
        for restore in tuple(self.registry.restores.values()):
            self._clamp_record_times(restore, restore.policy.restore_deadline_seconds, {})

    def _clamp_record_times(self, record: Record, seconds: float, changes: dict[str, float]) -> None:
        for name in _HAPPENED:
            at = getattr(record, name, None)
            if at is not None and at > self.now:
                changes[name] = self.now
        if record.deadline > self.now + seconds:
            changes["deadline"] = self.now + seconds
        if changes:
            self.registry.update(replace(record, **changes))


def has_future_record(records: Iterable[Record], now: float) -> bool:
    """Return whether any record was created in the future."""
    return any(record.created_at > now for record in records)
