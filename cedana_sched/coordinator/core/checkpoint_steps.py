"""Single checkpoint transitions: the order of each step, its Events, and its timer."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core import messages, orders
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.orders import Order
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, Checkpoint, CheckpointStep, HoldStep

DECIDED = frozenset({CheckpointStep.KILLING, CheckpointStep.THAWING, CheckpointStep.ABORTING})
"""Irreversible steps; these wait for the node's confirmation, also past the deadline."""


def may_have_left_a_snapshot(checkpoint: Checkpoint) -> bool:
    """Return whether a cancelled checkpoint may have left a snapshot: possibly dumped, its discard not confirmed."""
    was_frozen = checkpoint.frozen_at is not None
    return checkpoint.unconfirmed and checkpoint.step is CheckpointStep.FAILED and checkpoint.cancelled and was_frozen


class CheckpointSteps:
    """Transitions shared by the checkpoint and failure rules."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._book = context.book

    def move(self, checkpoint: Checkpoint, cause: Cause, **changes: object) -> Checkpoint | None:
        """Take a transition and send its order."""
        moved = self._book.move_checkpoint(checkpoint, cause, self._context.now, **changes)
        if moved is None or moved.step is checkpoint.step:
            return moved
        self._context.answered(moved.uid)
        order = orders.of_checkpoint(moved, self._context.now, self._book.lineage(moved.workload.uid))
        if order is not None and cause is Cause.ABORTED:  # the node has just tried
            self._context.repeat_in(moved.uid, self._context.timing.lost)
        elif order is not None:
            self._context.order(moved.uid, moved.workload.node, order)
        messages.of_checkpoint(self._context, moved, cause)
        if moved.step is CheckpointStep.READY and cause is not Cause.JOIN:
            self._retain(moved)
        return moved

    def confirm(self, checkpoint: Checkpoint) -> None:
        """Mark a terminal checkpoint as confirmed by its node, or as needing no confirmation."""
        if checkpoint.unconfirmed:
            confirmed = replace(checkpoint, unconfirmed=False, cleanup_pending=False)
            self._book.update(confirmed)
            self._book.touched[confirmed.uid] = None
            self._context.answered(confirmed.uid)
            self.arm(confirmed)

    def leave(self, checkpoint: Checkpoint) -> None:
        """Record that the node has thawed the workload: another checkpoint may start, only store cleanup is pending."""
        if not checkpoint.cleanup_pending:
            left = replace(checkpoint, cleanup_pending=True)
            self._book.update(left)
            self._book.touched[left.uid] = None
            self._context.repeat_in(left.uid, self._context.timing.lost)
            self.arm(left)

    def ended(self, checkpoint: Checkpoint) -> None:
        """Record that no process of a terminal checkpoint's workload is left to kill."""
        if may_have_left_a_snapshot(checkpoint):
            return
        if checkpoint.unconfirmed or checkpoint.kill_pending:
            ended = replace(checkpoint, unconfirmed=False, kill_pending=False)
            self._book.update(ended)
            self._book.touched[ended.uid] = None
            self._context.answered(ended.uid)
            self.arm(ended)

    def ends_at(self, checkpoint: Checkpoint) -> float | None:
        """Return when the doomed workload is killed even if not deleted; None while an active hold names it.

        Every hold counts: other preemptions may have joined this checkpoint.
        """
        if not checkpoint.kill_pending or checkpoint.step is not CheckpointStep.READY:
            return None
        released = [checkpoint.finished_at or checkpoint.created_at]
        for other in self._book.of_workload(checkpoint.workload.uid):
            hold = self._book.holds.get(other.signal_uid)
            if hold is None:
                continue
            if hold.step is not HoldStep.RELEASED or hold.released_at is None:
                return None
            released.append(hold.released_at)
        return max(released) + self._context.timing.patience

    def is_overdue(self, checkpoint: Checkpoint) -> bool:
        """Return whether the doomed workload was released, but not deleted within `Timing.patience`."""
        at = self.ends_at(checkpoint)
        return at is not None and self._context.now >= at

    def order_of(self, checkpoint: Checkpoint) -> Order | None:
        """Return the order that the current step waits on; see `orders.of_checkpoint`."""
        if self.is_overdue(checkpoint):
            return orders.end(checkpoint)
        lineage = self._book.lineage(checkpoint.workload.uid)
        return orders.of_checkpoint(checkpoint, self._context.now, lineage)

    def arm(self, checkpoint: Checkpoint, *, kept: bool = False) -> None:
        """Set the next timer. `kept`: the record has expired, but cannot be dropped now."""
        timing, now = self._context.timing, self._context.now
        if checkpoint.is_terminal:
            at = now + timing.remember if kept else self.forget_at(checkpoint)
        elif checkpoint.step in DECIDED:
            at = checkpoint.deadline + timing.confirm
        else:
            at = checkpoint.deadline
            if checkpoint.not_before is not None and checkpoint.not_before > now:
                at = min(at, checkpoint.not_before)
        earlier = self._context.repeat_at(checkpoint.uid)
        if earlier is None:
            earlier = self.ends_at(checkpoint)
        self._context.deadlines.set(checkpoint.uid, at if earlier is None else min(at, earlier))

    def forget_at(self, checkpoint: Checkpoint) -> float:
        """Return when the record expires; a signal repeated after its deadline is harmless without it.

        Records of doomed workloads are retained until the kill is due.
        """
        over = checkpoint.finished_at or self._context.now
        if checkpoint.kill_pending:
            over = max(over, self.ends_at(checkpoint) or self._context.now)
        return max(over + self._context.timing.remember, checkpoint.deadline)

    def forget(self, checkpoint: Checkpoint) -> bool:
        """Drop an expired record if its hold is dropped; a set with live members stays whole.

        A cancelled checkpoint that may have left a snapshot is retained, so that restores skip the snapshot, until its
        node confirms the removal or a newer snapshot exists.
        """
        if may_have_left_a_snapshot(checkpoint) and not self._has_newer(checkpoint):
            return False
        hold = self._book.holds.get(checkpoint.signal_uid)
        if hold is not None or not self._book.set_of(checkpoint).are_all(TERMINAL_CHECKPOINT_STEPS):
            return False
        self._context.answered(checkpoint.uid)
        self._context.deadlines.set(checkpoint.uid, None)
        self._book.forget(checkpoint)
        return True

    def _has_newer(self, checkpoint: Checkpoint) -> bool:
        over = checkpoint.finished_at or checkpoint.created_at
        of_identity = self._book.of_identity(checkpoint.identity, checkpoint.workload)
        ready = (one.committed_at for one in of_identity if one.step is CheckpointStep.READY)
        return any(at is not None and at > over for at in ready)

    def _retain(self, checkpoint: Checkpoint) -> None:
        spare = {
            ref.generation
            for restore in self._book.restores_naming(checkpoint.identity, checkpoint.workload)
            for ref in (restore.snapshot, restore.requested_snapshot)
            if ref is not None and ref.identity == checkpoint.identity and restore.finished_at is None
        }
        order = orders.retain(checkpoint, tuple(sorted(spare)))
        self._context.send_once(checkpoint.workload.node, order)
