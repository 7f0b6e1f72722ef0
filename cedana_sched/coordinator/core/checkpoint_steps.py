"""Single checkpoint transitions: the order of each step, its Events, and its timer; and how a set fails.

A set fails as a whole, and is retried as a whole if that may help.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from cedana_sched.coordinator.core import user_events
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.orders import Abort, ApplyRetention, DiscardCancelled, Dump, Freeze, Kill, Order, Thaw
from cedana_sched.model.policy import OnCheckpointFailure
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, Checkpoint, CheckpointStep, HoldStep
from cedana_sched.model.texts import truncate_text

IRREVERSIBLE_CHECKPOINT_STEPS = frozenset({CheckpointStep.KILLING, CheckpointStep.THAWING, CheckpointStep.ABORTING})
"""Irreversible steps; these wait for the node's confirmation, also past the deadline."""

_GIVEN = (*(field.name for field in msgspec.structs.fields(Checkpoint) if field.required), "workload_started_at")
"""Fields that a checkpoint is created with; the others are what it has reached."""
_POLICY_VERDICT = {
    OnCheckpointFailure.EVICT: Verdict.EVICT,
    OnCheckpointFailure.KEEP_RUNNING: Verdict.KEEP_RUNNING,
}


def checkpoint_uid_of(signal_uid: str, workload_uid: str, attempt: int) -> str:
    """Return the uid of one attempt; deterministic, so a repeated signal yields the same uid."""
    return f"{signal_uid}.{workload_uid}.{attempt}"


def verdict_of(checkpoint: Checkpoint) -> Verdict:
    """Return the verdict to release with now."""
    if checkpoint.verdict is not None:
        return checkpoint.verdict
    return _POLICY_VERDICT[checkpoint.policy.on_checkpoint_failure]


def may_have_left_a_snapshot(checkpoint: Checkpoint) -> bool:
    """Return whether a cancelled checkpoint may have left a snapshot: possibly dumped, its discard not confirmed."""
    was_frozen = checkpoint.frozen_at is not None
    return checkpoint.unconfirmed and checkpoint.step is CheckpointStep.FAILED and checkpoint.cancelled and was_frozen


def order_of(checkpoint: Checkpoint, now: float, lineage: Lineage) -> Order | None:
    """Return the order that the current step waits on; the same for the first send, a repetition, and recovery.

    `lineage` is that of the workload.
    """
    uid, workload, step = checkpoint.uid, checkpoint.workload, checkpoint.step
    silent = checkpoint.unconfirmed
    left = max(checkpoint.deadline - now, 0.0)
    if step is CheckpointStep.FREEZING:
        return Freeze(uid, workload, checkpoint.gang is not None, left)
    if step is CheckpointStep.DUMPING:
        compression, who = checkpoint.policy.compression, (checkpoint.reason, checkpoint.adapter)
        runs_on = not checkpoint.is_stopped_after_commit
        return Dump(uid, workload, checkpoint.identity, compression, *who, left, lineage, runs_on)
    if step in {CheckpointStep.KILLING, CheckpointStep.THAWING} or (step is CheckpointStep.READY and silent):
        return Kill(uid, workload) if checkpoint.is_stopped_after_commit else Thaw(uid, workload)
    if step is CheckpointStep.FAILED and checkpoint.cleanup_pending:
        return DiscardCancelled(uid, checkpoint.identity, workload.namespace_uid)
    if step is CheckpointStep.ABORTING or (step is CheckpointStep.FAILED and silent):
        return abort_of(checkpoint)
    return None


def final_kill_of(checkpoint: Checkpoint) -> Kill:
    """Return the final kill of a frozen workload that was released but not deleted."""
    return Kill(checkpoint.uid, checkpoint.workload, insist=True)


def abort_of(checkpoint: Checkpoint) -> Abort:
    """Return the order that undoes the checkpoint, whatever its state on the node."""
    why = checkpoint.failure or "it was cancelled"
    return Abort(checkpoint.uid, checkpoint.workload, checkpoint.identity, why)


class CheckpointSteps:
    """Transitions, timers and failures of checkpoints."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._registry = turn.registry

    def take_transition(self, checkpoint: Checkpoint, cause: Cause, **changes: object) -> Checkpoint | None:
        """Take a transition and send its order."""
        moved = self._registry.take_transition(checkpoint, cause, self._turn.now, **changes)
        if moved is None or moved.step is checkpoint.step:
            return moved
        self._turn.stop_repeating(moved.uid)
        order = order_of(moved, self._turn.now, self._registry.lineage(moved.workload.uid))
        if order is not None and cause is Cause.ABORTED:  # the node has just tried
            self._turn.repeat_order_in(moved.uid, self._turn.timing.lost)
        elif order is not None:
            self._turn.send_order(moved.uid, moved.workload.node, order)
        self._turn.publish(user_events.checkpoint_event(moved, cause))
        if moved.step is CheckpointStep.READY and cause is not Cause.JOIN:
            self._order_retention(moved)
        return moved

    def mark_confirmed(self, checkpoint: Checkpoint) -> None:
        """Mark a terminal checkpoint as confirmed by its node, or as needing no confirmation."""
        if checkpoint.unconfirmed:
            self._turn.stop_repeating(checkpoint.uid)
            self._change_without_transition(checkpoint, unconfirmed=False, cleanup_pending=False)

    def mark_cleanup_pending(self, checkpoint: Checkpoint) -> None:
        """Record that the node has thawed the workload: another checkpoint may start, only store cleanup is pending."""
        if not checkpoint.cleanup_pending:
            self._turn.repeat_order_in(checkpoint.uid, self._turn.timing.lost)
            self._change_without_transition(checkpoint, cleanup_pending=True)

    def mark_workload_ended(self, checkpoint: Checkpoint) -> None:
        """Record that no process of a terminal checkpoint's workload is left to kill."""
        if not may_have_left_a_snapshot(checkpoint) and (checkpoint.unconfirmed or checkpoint.kill_pending):
            self._turn.stop_repeating(checkpoint.uid)
            self._change_without_transition(checkpoint, unconfirmed=False, kill_pending=False)

    def order_of(self, checkpoint: Checkpoint) -> Order | None:
        """Return the order that the current step waits on."""
        if self.is_deletion_overdue(checkpoint):
            return final_kill_of(checkpoint)
        return order_of(checkpoint, self._turn.now, self._registry.lineage(checkpoint.workload.uid))

    def _change_without_transition(self, checkpoint: Checkpoint, **changes: object) -> None:
        """Change a checkpoint without a transition; the records that waited for the change are reconciled."""
        changed = replace(checkpoint, **changes)
        self._registry.update(changed)
        self._registry.mark_for_reconciliation(changed.uid)
        self.set_next_timer(changed)

    def _order_retention(self, checkpoint: Checkpoint) -> None:
        spare = {
            ref.generation
            for restore in self._registry.restores_naming(checkpoint.identity, checkpoint.workload)
            for ref in (restore.snapshot, restore.requested_snapshot)
            if ref is not None and ref.identity == checkpoint.identity and restore.finished_at is None
        }
        retention = checkpoint.policy.retention
        order = ApplyRetention(checkpoint.uid, checkpoint.identity, retention, tuple(sorted(spare)))
        self._turn.send_once(checkpoint.workload.node, order)

    # -- timers

    def set_next_timer(self, checkpoint: Checkpoint, *, kept: bool = False) -> None:
        """Set the next timer. `kept`: the record has expired, but cannot be dropped now."""
        timing, now = self._turn.timing, self._turn.now
        if checkpoint.is_terminal:
            at = now + timing.remember if kept else self.forget_at(checkpoint)
        elif checkpoint.step in IRREVERSIBLE_CHECKPOINT_STEPS:
            at = checkpoint.deadline + timing.confirm
        else:
            at = checkpoint.deadline
            if checkpoint.not_before is not None and checkpoint.not_before > now:
                at = min(at, checkpoint.not_before)
        earlier = self._turn.next_repetition_at(checkpoint.uid)
        if earlier is None:
            earlier = self.final_kill_at(checkpoint)
        self._turn.timers.set(checkpoint.uid, at if earlier is None else min(at, earlier))

    def final_kill_at(self, checkpoint: Checkpoint) -> float | None:
        """Return when a workload with a pending kill is killed even if not deleted; None while an active hold names it.

        Every hold counts: other preemptions may have joined this checkpoint.
        """
        if not checkpoint.kill_pending or checkpoint.step is not CheckpointStep.READY:
            return None
        released = [checkpoint.finished_at or checkpoint.created_at]
        for other in self._registry.checkpoints_of_workload(checkpoint.workload.uid):
            hold = self._registry.holds.get(other.signal_uid)
            if hold is None:
                continue
            if hold.step is not HoldStep.RELEASED or hold.released_at is None:
                return None
            released.append(hold.released_at)
        return max(released) + self._turn.timing.patience

    def is_deletion_overdue(self, checkpoint: Checkpoint) -> bool:
        """Return whether a workload with a pending kill was released, but not deleted within `Timing.patience`."""
        at = self.final_kill_at(checkpoint)
        return at is not None and self._turn.now >= at

    def forget_at(self, checkpoint: Checkpoint) -> float:
        """Return when the record expires; a signal repeated after its deadline is harmless without it.

        Records of workloads with a pending kill are retained until the kill is due.
        """
        over = checkpoint.finished_at or self._turn.now
        if checkpoint.kill_pending:
            over = max(over, self.final_kill_at(checkpoint) or self._turn.now)
        return max(over + self._turn.timing.remember, checkpoint.deadline)

    def forget(self, checkpoint: Checkpoint) -> bool:
        """Drop an expired record if its hold is dropped; a set with live members stays whole.

        A cancelled checkpoint that may have left a snapshot is retained, so that restores skip the snapshot, until its
        node confirms the removal or a newer snapshot exists.
        """
        if may_have_left_a_snapshot(checkpoint) and not self._has_newer(checkpoint):
            return False
        hold = self._registry.holds.get(checkpoint.signal_uid)
        if hold is not None or not self._registry.checkpoint_set_of(checkpoint).are_all(TERMINAL_CHECKPOINT_STEPS):
            return False
        self._turn.stop_repeating(checkpoint.uid)
        self._turn.timers.set(checkpoint.uid, None)
        self._registry.forget(checkpoint)
        return True

    def _has_newer(self, checkpoint: Checkpoint) -> bool:
        over = checkpoint.finished_at or checkpoint.created_at
        of_identity = self._registry.checkpoints_of_identity(checkpoint.identity, checkpoint.workload)
        ready = (one.committed_at for one in of_identity if one.step is CheckpointStep.READY)
        return any(at is not None and at > over for at in ready)

    # -- failures

    def fail(self, checkpoint: Checkpoint, cause: Cause, why: str, *, retryable: bool = False) -> None:
        """Fail this checkpoint and its set; retry all of it if that may help."""
        why = truncate_text(why)
        is_retried = retryable and self._retry_backoff_seconds(checkpoint) is not None
        failed = self._undo(checkpoint, cause, why, is_retried=is_retried)
        if failed is None:
            return
        if is_retried:
            self._retry([failed])
        rest = cause if cause in {Cause.DEADLINE, Cause.CANCELLED} else Cause.SET_FAILED
        self.fail_other_members(failed, rest, f"gang member {failed.workload.name}: {why}", retryable=is_retried)

    def fail_other_members(
        self, failed: Checkpoint, cause: Cause, why: str, *, retryable: bool = False, at_once: bool = False
    ) -> None:
        """Fail the other members of a set whose member failed."""
        is_retried = retryable and self._retry_backoff_seconds(failed) is not None
        survivors = []
        for member in self._registry.members_of_set(failed):
            if member.uid == failed.uid or member.is_terminal or member.step in IRREVERSIBLE_CHECKPOINT_STEPS:
                continue
            moved = self._undo(member, cause, why, is_retried=is_retried)
            if moved is not None:
                survivors.append(moved)
        if is_retried:
            self._retry([m for m in survivors if not m.workload_gone], at_once=at_once)

    def fail_for_ended_workload(self, checkpoint: Checkpoint, why: str) -> None:
        """Fail a checkpoint whose workload ended by itself, unless it is committed; the rest of its set retries."""
        if checkpoint.step is CheckpointStep.COMMITTED:
            self.take_transition(checkpoint, Cause.ENDED, workload_gone=True)
            return
        if checkpoint.step in IRREVERSIBLE_CHECKPOINT_STEPS:
            self.take_transition(checkpoint, Cause.ENDED)
            return
        reason = f"the workload ended: {why}"
        self.take_transition(checkpoint, Cause.ENDED, cancelled=True, failure=reason, verdict=Verdict.NOT_NEEDED)
        self.fail_other_members(
            checkpoint, Cause.SET_FAILED, "a member of its gang ended", retryable=True, at_once=True
        )

    def _undo(self, checkpoint: Checkpoint, cause: Cause, why: str, *, is_retried: bool) -> Checkpoint | None:
        """Order the abort; a retried checkpoint leaves the verdict to its next attempt."""
        decided = Verdict.NOT_NEEDED if cause is Cause.CANCELLED else verdict_of(checkpoint)
        return self.take_transition(
            checkpoint, cause, cancelled=True, failure=why, verdict=None if is_retried else decided
        )

    def _retry_backoff_seconds(self, checkpoint: Checkpoint) -> float | None:
        """Return the backoff in seconds until the next attempt; None if too little time is left."""
        return self._turn.timing.retry_backoff_within(checkpoint.attempt, checkpoint.deadline - self._turn.now)

    def _retry(self, failed: list[Checkpoint], *, at_once: bool = False) -> None:
        """Create replacement checkpoints, which start once the abort of the failed ones is confirmed."""
        now = self._turn.now
        for old in failed:
            attempt, pause = old.attempt + 1, self._retry_backoff_seconds(old)
            changes = {
                "uid": checkpoint_uid_of(old.signal_uid, old.workload.uid, attempt),
                "step": CheckpointStep.WAITING,
                "created_at": now,
                "attempt": attempt,
                "not_before": None if at_once or pause is None else now + pause,
            }
            new = _copy_for_retry(old, changes)
            self._registry.add(new, now, f"attempt {attempt} after {old.failure}")
            hold = self._registry.holds.get(old.signal_uid)
            if hold is not None:
                uids = tuple(new.uid if uid == old.uid else uid for uid in hold.checkpoints)
                self._registry.update(replace(hold, checkpoints=uids))


def _copy_for_retry(checkpoint: Checkpoint, changes: dict[str, Any]) -> Checkpoint:
    """Return a copy that has reached nothing yet, with these changes."""
    given: dict[str, Any] = {name: getattr(checkpoint, name) for name in _GIVEN}
    return Checkpoint(**(given | changes))
