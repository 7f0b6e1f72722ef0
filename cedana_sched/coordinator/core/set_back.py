"""The clock has shown a time that was not: what was noted by it is bounded by what it shows now.

Else every preemption would be past its deadline until that time comes, and what was begun meanwhile would wait for as
long. How wrong it was at which time is unknown, so times only come nearer: what has happened did so by now, and nothing
has more time from now on than its policy gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.records import Checkpoint, Record, Restore

SET_BACK_SECONDS = 30.0
"""So far a time may lie behind an earlier one without the clock being wrong: one API server follows another."""

_HAPPENED = ("created_at", "frozen_at", "committed_at", "finished_at", "released_at", "running_at")


def was_ahead(records: Iterable[Record], now: float) -> bool:
    """Whether some of them were made at a time that has not come yet."""
    return any(record.created_at > now for record in records)


def set_back(context: TurnContext, now: float) -> None:
    """Take this time for the right one. Whoever calls looks at every record again."""
    context.now = now
    context.hasten()
    granted: dict[str, float] = {}
    for checkpoint in context.book.checkpoints.values():
        seconds = checkpoint.policy.deadline_seconds
        granted[checkpoint.signal_uid] = min(granted.get(checkpoint.signal_uid, seconds), seconds)
    for record in tuple(context.book.records()):
        if isinstance(record, Restore):
            seconds = record.policy.restore_deadline_seconds
        else:
            seconds = granted.get(record.signal_uid if isinstance(record, Checkpoint) else record.uid, 0.0)
        changes = _bounds(record, now, seconds)
        if isinstance(record, Checkpoint) and record.not_before is not None:
            changes["not_before"] = min(record.not_before, now + context.timing.retry_most)
        if changes:
            context.book.update(replace(record, **changes))


def _bounds(record: Record, now: float, seconds: float) -> dict[str, Any]:
    happened = ((name, getattr(record, name, None)) for name in _HAPPENED)
    changes: dict[str, Any] = {name: now for name, at in happened if at is not None and at > now}
    if record.deadline > now + seconds:
        changes["deadline"] = now + seconds
    return changes
