"""Recovery from a clock that ran ahead: recorded times are clamped to the corrected time.

Otherwise every preemption would be past its deadline, and records created meanwhile would wait, until the clock reaches
those times again. The size of the error at each time is unknown, so times only move closer: past events have happened
by now, and no deadline is further off than its policy allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.records import Checkpoint, Record, Restore

SET_BACK_SECONDS = 30.0
"""Tolerated step back without assuming a wrong clock: API server replicas' clocks differ."""

_HAPPENED = ("created_at", "frozen_at", "committed_at", "finished_at", "released_at", "running_at")


def was_ahead(records: Iterable[Record], now: float) -> bool:
    """Return whether any record was created in the future."""
    return any(record.created_at > now for record in records)


def set_back(context: TurnContext, now: float) -> None:
    """Accept `now` as correct. The caller must set every record's timer again."""
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
