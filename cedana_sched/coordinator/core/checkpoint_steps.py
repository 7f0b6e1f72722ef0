"""One step of one checkpoint: the order that goes with it, what is told, and when it is looked at again."""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core import orders, words
from cedana_sched.coordinator.core.desk import Desk
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.model.records import Checkpoint, CheckpointStep

DECIDED = frozenset({CheckpointStep.KILLING, CheckpointStep.RESUMING, CheckpointStep.ABORTING})
"""Steps that cannot be taken back; they wait for the node's confirmation, also past the deadline."""


class CheckpointSteps:
    """Shared by the rules of the checkpoints and those of their failures."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._book = desk.book

    def move(self, checkpoint: Checkpoint, cause: Cause, **changes: object) -> Checkpoint | None:
        """Take a step and give the order that goes with it."""
        moved = self._book.move_checkpoint(checkpoint, cause, self._desk.now, **changes)
        if moved is None or moved.step is checkpoint.step:
            return moved
        self._desk.answered(moved.uid)
        order = orders.of_checkpoint(moved, self._desk.now)
        if order is not None:
            self._desk.order(moved.uid, moved.workload.node, order)
        words.of_checkpoint(self._desk, moved, cause)
        if moved.step is CheckpointStep.READY and cause is not Cause.JOIN:
            self._retain(moved)
        return moved

    def confirm(self, checkpoint: Checkpoint) -> None:
        """The node's silence about a settled checkpoint is over, or does not matter any more."""
        if checkpoint.unconfirmed:
            confirmed = replace(checkpoint, unconfirmed=False)
            self._book.update(confirmed)
            self._desk.answered(confirmed.uid)
            self.arm(confirmed)

    def arm(self, checkpoint: Checkpoint) -> None:
        """Set when it is looked at again."""
        timing, now = self._desk.timing, self._desk.now
        repeat = self._desk.repeat_at(checkpoint.uid)
        if checkpoint.settled:
            at = self.forget_at(checkpoint)
        elif checkpoint.step in DECIDED:
            at = checkpoint.deadline + timing.confirm
        else:
            at = checkpoint.deadline
            if checkpoint.not_before is not None and checkpoint.not_before > now:
                at = min(at, checkpoint.not_before)
        self._desk.deadlines.set(checkpoint.uid, at if repeat is None else min(at, repeat))

    def forget_at(self, checkpoint: Checkpoint) -> float:
        """A signal that is repeated later than its deadline does no harm, remembered or not."""
        return max((checkpoint.finished_at or self._desk.now) + self._desk.timing.remember, checkpoint.deadline)

    def forget(self, checkpoint: Checkpoint) -> None:
        """Drop it, together with its set, once its hold is released; a set with live members stays whole."""
        hold = self._book.holds.get(checkpoint.signal_uid)
        if hold is not None or any(not member.settled for member in self._book.members(checkpoint)):
            self._desk.deadlines.set(checkpoint.uid, self._desk.now + self._desk.timing.remember)
            return
        self._desk.answered(checkpoint.uid)
        self._desk.deadlines.set(checkpoint.uid, None)
        self._book.forget(checkpoint)

    def _retain(self, checkpoint: Checkpoint) -> None:
        spare = {
            ref.generation
            for restore in self._book.restores.values()
            for ref in (restore.snapshot, restore.wanted)
            if ref is not None and ref.identity == checkpoint.identity and restore.finished_at is None
        }
        order = orders.retain(checkpoint, tuple(sorted(spare)))
        self._desk.send_once(checkpoint.workload.node, order)
