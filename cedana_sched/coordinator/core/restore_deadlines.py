"""Restore timers, and what extends the deadline: bytes staged, checkpoints in flight."""

from __future__ import annotations

from collections.abc import Sequence

from cedana_sched.coordinator.core.book import unconfirmed
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from cedana_sched.model.records import Checkpoint, Restore, RestoreStep


def next_look(context: TurnContext, restore: Restore) -> float | None:
    """Return the next timer: deadline, order repetition or retention; None if the restore waits for nothing."""
    at: float | None = restore.deadline
    if restore.step is RestoreStep.RUNNING or unconfirmed(restore):
        at = None
    elif restore.finished_at is not None:
        at = restore.finished_at + context.timing.remember  # then a later one may have taken over its failures
    elif restore.step in {RestoreStep.STARTING_COLD, RestoreStep.FAILING_WORKLOAD}:
        at = restore.deadline + context.timing.confirm
    repeat = context.repeat_at(restore.uid)
    if repeat is not None:
        at = repeat if at is None else min(at, repeat)
    return at


def after_progress(restore: Restore, now: float) -> float | None:
    """Return the deadline extended for staged bytes; None if the current one is far off or at its bound."""
    is_near = restore.deadline - now < restore.policy.restore_deadline_seconds / 2  # not one write per report
    return after_wait(restore, now) if is_near else None


def after_wait(restore: Restore, now: float) -> float | None:
    """Return the deadline extended after a wait; None if the current one is no earlier."""
    deadline = min(now + restore.policy.restore_deadline_seconds, restore.created_at + LONGEST_RECORD_SECONDS)
    return deadline if deadline > restore.deadline else None


def after_checkpoints(
    context: TurnContext, restore: Restore, in_flight: Sequence[Checkpoint], own: Sequence[Checkpoint]
) -> float | None:
    """Return the deadline extended for checkpoints in flight, which end by their own deadlines; None if there are none.

    `own`: checkpoints of the restore's workload, some possibly terminal.
    """
    waited_for = [*in_flight, *(one for one in own if not one.is_terminal or one.kill_pending or one.unconfirmed)]
    if not waited_for:
        return None
    settled = max(one.deadline for one in waited_for) + context.timing.confirm
    return max(settled, context.now) + restore.policy.restore_deadline_seconds
