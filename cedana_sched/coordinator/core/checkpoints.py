"""Checkpoint rules: creation, answers, barriers, and completion.

A set is the members of a gang, or a single checkpoint. A failed attempt that may be retried is aborted, and a new
attempt with new uids waits until the abort is confirmed: no process is ever frozen by two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from cedana_sched.coordinator.core import user_events
from cedana_sched.coordinator.core.checkpoint_starts import CheckpointStarts
from cedana_sched.coordinator.core.checkpoint_steps import (
    IRREVERSIBLE_CHECKPOINT_STEPS,
    CheckpointSteps,
    abort_of,
    checkpoint_uid_of,
    final_kill_of,
    may_have_left_a_snapshot,
)
from cedana_sched.coordinator.core.events import NodeLost
from cedana_sched.coordinator.core.record_registry import is_unconfirmed
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.orders import (
    Aborted,
    CheckpointFailed,
    CheckpointOutcome,
    Committed,
    Frozen,
    Killed,
    Order,
    Progress,
    SnapshotRemoved,
    Thaw,
    Thawed,
)
from cedana_sched.model.preemption import AfterCommit, Signal, Verdict, Victim
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    PreemptionHold,
    RestoreStep,
)

_SEEN_LATE = "its deadline had passed before it was seen"


class Checkpoints:
    """All checkpoints of one core."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._registry = turn.registry
        self._steps = CheckpointSteps(turn)
        self.starts = CheckpointStarts(turn, self._steps)
        self._answers: Mapping[type[CheckpointOutcome], Callable[[Checkpoint, Any], None]] = {
            Frozen: self._on_frozen,
            Progress: self._on_progress,
            Committed: self._on_committed,
            CheckpointFailed: self._on_checkpoint_failed,
            Killed: self._on_killed,
            Thawed: self._on_thawed,
            Aborted: self._on_aborted,
            SnapshotRemoved: self._on_snapshot_removed,
        }

    # -- events

    def create(self, signal: Signal, deadline: float) -> tuple[str, ...]:
        """Create one checkpoint per victim of a signal; each starts as soon as it is unblocked."""
        victims: dict[str, Victim] = {victim.workload.uid: victim for victim in signal.victims}
        nodes = {victim.workload.node for victim in victims.values()}
        if signal.after_commit is AfterCommit.STOP:
            self._cancel_periodic_checkpoints_on(nodes)
        uids: list[str] = []
        for victim in victims.values():
            checkpoint = Checkpoint(
                uid=checkpoint_uid_of(signal.uid, victim.workload.uid, 1),
                signal_uid=signal.uid,
                adapter=signal.adapter,
                workload=victim.workload,
                identity=victim.identity,
                policy=victim.policy,
                gang=victim.gang,
                after_commit=signal.after_commit,
                reason=signal.reason,
                step=CheckpointStep.WAITING,
                created_at=self._turn.now,
                deadline=deadline,
                workload_started_at=victim.started_at,
            )
            self._registry.add(checkpoint, self._turn.now, f"signal of {signal.adapter}, {signal.reason}")
            uids.append(checkpoint.uid)
            if victim.refused is not None:
                self.starts.refuse(checkpoint.uid, victim.refused)
        if any(map(self._is_node_saving_for_eviction, nodes)):
            self._cancel_if_periodic(uids)
        return tuple(uids)

    def apply_answer(self, outcome: CheckpointOutcome) -> None:
        """Apply an agent's answer; drop answers for expired records, and those that no record waits on."""
        checkpoint = self._registry.checkpoints.get(outcome.checkpoint_uid)
        apply = self._answers.get(type(outcome))
        if checkpoint is not None and apply is not None:
            apply(checkpoint, outcome)

    def cancel(self, signal_uid: str, why: str) -> None:
        """Cancel a preemption: abort what can be aborted; the workloads run on. Also valid after the release."""
        for checkpoint in self._registry.current_versions_of(self._registry.checkpoints_of_signal(signal_uid)):
            if checkpoint.step is CheckpointStep.READY and checkpoint.kill_pending:
                self._thaw_saved_workload(checkpoint)
            elif not checkpoint.is_terminal and checkpoint.step not in IRREVERSIBLE_CHECKPOINT_STEPS:
                self._steps.fail(checkpoint, Cause.CANCELLED, f"the preemption was cancelled: {why}")

    def on_workload_ended(self, workload_uid: str, why: str, *, lost_with_node: bool = False) -> None:
        """Fail the checkpoint of a victim that ended by itself; the rest of its gang retries without it."""
        for checkpoint in self._registry.current_versions_of(self._registry.checkpoints_of_workload(workload_uid)):
            if not checkpoint.is_terminal:
                self._steps.fail_for_ended_workload(checkpoint, why)
            elif checkpoint.step is CheckpointStep.READY:
                self._steps.mark_workload_ended(checkpoint)
        if not lost_with_node:
            self._record_end(workload_uid)

    def _record_end(self, workload_uid: str) -> None:
        """Record the end in the last snapshot after which the workload has run on: it is not lost with its node later.

        A new coordinator may see the workload's node gone, and neither the workload nor its end.
        """
        made = self._registry.checkpoints_of_workload(workload_uid)
        ready = [one for one in made if one.step is CheckpointStep.READY and one.snapshot is not None]
        last = max(ready, key=lambda one: one.snapshot.generation if one.snapshot is not None else 0, default=None)
        if last is not None and not last.is_stopped_after_commit and not last.workload_ended:
            self._registry.update(replace(last, workload_ended=True))

    def lose_node(self, lost: NodeLost) -> None:
        """Fail every checkpoint on a lost node, except committed ones, which stay valid."""
        for checkpoint in self._registry.current_versions_of(self._registry.checkpoints_on_node(lost.node)):
            if not lost.ends(checkpoint):
                continue
            if checkpoint.is_terminal:
                self._steps.mark_workload_ended(checkpoint)
                continue
            if checkpoint.step is CheckpointStep.COMMITTED:
                self._steps.take_transition(checkpoint, Cause.NODE_LOST, workload_gone=True)
                continue
            why = f"node {lost.node} is lost"
            committed = checkpoint.step in {CheckpointStep.KILLING, CheckpointStep.THAWING}
            changes = {} if committed else {"failure": checkpoint.failure or why, "verdict": Verdict.NOT_NEEDED}
            # outside a gang, a completed dump may have been committed unreported, and is then valid
            cancelled = checkpoint.cancelled or (not committed and checkpoint.gang is not None)
            dumped = checkpoint.step in {CheckpointStep.DUMPING, CheckpointStep.ABORTING}
            is_left = cancelled and dumped and checkpoint.frozen_at is not None
            self._steps.take_transition(
                checkpoint, Cause.NODE_LOST, cancelled=cancelled, unconfirmed=is_left, **changes
            )
            if not committed:
                self._steps.fail_other_members(checkpoint, Cause.SET_FAILED, why)

    def lose_order(self, checkpoint: Checkpoint, order: Order) -> None:
        """Repeat a lost order with backoff, if the step still waits on it."""
        current = self._steps.order_of(checkpoint)
        if current is None or type(current) is type(order):
            self._turn.hasten_repetition(checkpoint.uid)
            self.set_next_timer(checkpoint)

    def handle_timer(self, checkpoint: Checkpoint) -> None:
        """Handle an expired timer: the deadline, a backoff, an order to repeat, or the record's retention."""
        now = self._turn.now
        is_over = checkpoint.is_terminal and now >= self._steps.forget_at(checkpoint)
        if is_over and self._steps.forget(checkpoint):
            self.starts.start_waiting(checkpoint.workload.uid)  # they waited for the node's answer
            return
        if checkpoint.step in IRREVERSIBLE_CHECKPOINT_STEPS:
            if now >= checkpoint.deadline + self._turn.timing.confirm:
                self._steps.take_transition(checkpoint, Cause.UNCONFIRMED, unconfirmed=True)
                return
        elif not checkpoint.is_terminal and now >= checkpoint.deadline:
            seconds = checkpoint.deadline - checkpoint.created_at
            why = f"not committed within {user_events.format_seconds(seconds)}" if seconds > 0 else _SEEN_LATE
            self._steps.fail(checkpoint, Cause.DEADLINE, why)
            return
        if checkpoint.step is CheckpointStep.WAITING:
            self.starts.try_to_begin(checkpoint)
        elif self._turn.next_repetition_at(checkpoint.uid) is None and self._steps.is_deletion_overdue(checkpoint):
            self._turn.publish(user_events.deletion_overdue_event(checkpoint, self._turn.timing.patience))
            self._turn.send_order(checkpoint.uid, checkpoint.workload.node, final_kill_of(checkpoint))
        elif self._turn.take_due_repetition(checkpoint.uid):
            order = self._steps.order_of(checkpoint)
            if order is not None:
                self._turn.send_once(checkpoint.workload.node, order)
        self._steps.set_next_timer(self._registry.checkpoints[checkpoint.uid], kept=is_over)

    # -- reconciliation

    def reconcile(self, checkpoint: Checkpoint) -> None:
        """Reconcile a changed checkpoint: pass barriers and start unblocked checkpoints."""
        if checkpoint.step is CheckpointStep.WAITING:
            self.starts.try_to_begin(checkpoint)
        elif checkpoint.step is CheckpointStep.FROZEN:
            if self._registry.checkpoint_set_of(checkpoint).are_all({CheckpointStep.FROZEN}):
                for member in self._registry.members_of_set(checkpoint):
                    self._steps.take_transition(member, Cause.ALL_FROZEN)
        elif checkpoint.step is CheckpointStep.COMMITTED:
            self._pass_commit_barrier(checkpoint)
        elif checkpoint.is_terminal:
            self.starts.start_waiting(checkpoint.workload.uid)
        self._steps.set_next_timer(self._registry.checkpoints[checkpoint.uid])

    def set_next_timer(self, checkpoint: Checkpoint) -> None:
        """Set the checkpoint's next timer."""
        self._steps.set_next_timer(checkpoint)

    def repeat_after_recovery(self, checkpoint: Checkpoint) -> None:
        """Repeat the order of the current step (recovery)."""
        order = self._steps.order_of(checkpoint)
        if order is not None:
            self._turn.send_order(checkpoint.uid, checkpoint.workload.node, order)

    def set_final_kill_timers(self, hold: PreemptionHold) -> None:
        """Start the timers after which workloads with a pending kill are killed even if not deleted."""
        for named in self._registry.checkpoints_of_hold(hold):
            for checkpoint in self._registry.checkpoints_of_workload(named.workload.uid):
                if checkpoint.kill_pending:
                    self._steps.set_next_timer(checkpoint)

    def shorten_deadlines(self, signal_uid: str, deadline: float) -> None:
        """Shorten the deadline of a signal's checkpoints, for an external deadline earlier than the policy's."""
        for checkpoint in self._registry.checkpoints_of_signal(signal_uid):
            if not checkpoint.is_terminal and deadline < checkpoint.deadline:
                tightened = replace(checkpoint, deadline=deadline)
                self._registry.update(tightened)
                self._steps.set_next_timer(tightened)

    # -- answers

    def _on_frozen(self, checkpoint: Checkpoint, _: Frozen) -> None:
        if self._steps.take_transition(checkpoint, Cause.FROZEN, frozen_at=self._turn.now) is None:
            self._undo_late_freeze(checkpoint)

    def _on_progress(self, checkpoint: Checkpoint, progress: Progress) -> None:
        if checkpoint.step is CheckpointStep.DUMPING:
            self._registry.update(replace(checkpoint, transfer=progress.transfer), stored=False)
            self._turn.defer_repetition(checkpoint.uid)
            self._steps.set_next_timer(checkpoint)

    def _on_committed(self, checkpoint: Checkpoint, outcome: Committed) -> None:
        if checkpoint.step is CheckpointStep.FAILED:
            if checkpoint.cancelled:  # cancelled earlier: discard the late snapshot
                self._turn.send_once(checkpoint.workload.node, abort_of(checkpoint))
            return
        if outcome.snapshot.identity != checkpoint.identity and checkpoint.step is CheckpointStep.DUMPING:
            why = f"its agent committed {outcome.snapshot}, which is another identity's"
            self._steps.fail(checkpoint, Cause.CHECKPOINT_FAILED, why)
            return
        changes = {
            "snapshot": outcome.snapshot,
            "manifest_digest": outcome.manifest_digest,
            "transfer": outcome.transfer,
            "committed_at": self._turn.now,
        }
        if (
            self._steps.take_transition(checkpoint, Cause.COMMITTED, **changes) is not None
            and outcome.leaves is not None
        ):
            self._turn.publish(user_events.abandoned_work_event(checkpoint, outcome.snapshot, outcome.leaves))

    def _on_checkpoint_failed(self, checkpoint: Checkpoint, failed: CheckpointFailed) -> None:
        if self._has_failed_restore(checkpoint):
            self._steps.fail_for_ended_workload(checkpoint, failed.why)
        else:
            self._steps.fail(checkpoint, Cause.CHECKPOINT_FAILED, failed.why, retryable=failed.retryable)

    def _on_killed(self, checkpoint: Checkpoint, killed: Killed) -> None:
        """Apply the answer to a `Kill`, possibly to a repeated one, or to one with `insist`."""
        still_frozen = killed.still_frozen
        if (
            self._steps.take_transition(checkpoint, Cause.KILLED, kill_pending=still_frozen) is not None
            or not checkpoint.is_stopped_after_commit
        ):
            return
        if not still_frozen:
            self._steps.mark_workload_ended(checkpoint)
        elif checkpoint.unconfirmed:
            self._registry.update(replace(checkpoint, kill_pending=True))
            self._steps.mark_confirmed(self._registry.checkpoints[checkpoint.uid])

    def _on_thawed(self, checkpoint: Checkpoint, _: Thawed) -> None:
        if self._steps.take_transition(checkpoint, Cause.THAWED) is None:
            self._steps.mark_confirmed(checkpoint)

    def _on_aborted(self, checkpoint: Checkpoint, aborted: Aborted) -> None:
        is_left = aborted.cleanup_pending and checkpoint.frozen_at is not None
        if (
            self._steps.take_transition(checkpoint, Cause.ABORTED, unconfirmed=is_left, cleanup_pending=is_left)
            is not None
        ):
            return
        if aborted.cleanup_pending and may_have_left_a_snapshot(checkpoint):
            self._steps.mark_cleanup_pending(checkpoint)
        else:
            self._steps.mark_confirmed(checkpoint)

    def _on_snapshot_removed(self, checkpoint: Checkpoint, _: SnapshotRemoved) -> None:
        if checkpoint.cleanup_pending:
            self._steps.mark_confirmed(checkpoint)

    def _undo_late_freeze(self, checkpoint: Checkpoint) -> None:
        """Undo a delayed `Freeze` that may have been executed after the checkpoint was terminal; harmless if not."""
        node = checkpoint.workload.node
        if checkpoint.step is CheckpointStep.FAILED and checkpoint.cancelled:
            self._turn.send_once(node, abort_of(checkpoint))
        elif checkpoint.step is CheckpointStep.READY and not checkpoint.is_stopped_after_commit:
            self._turn.send_once(node, Thaw(checkpoint.uid, checkpoint.workload))

    # -- steps

    def _has_failed_restore(self, checkpoint: Checkpoint) -> bool:
        """Return whether the workload to be frozen had failed to restore, as its node has confirmed meanwhile."""
        restore = self._registry.latest_restore_of_workload(checkpoint.workload.uid)
        is_over = restore is not None and restore.step is RestoreStep.FAILED and not is_unconfirmed(restore)
        return is_over and checkpoint.step is CheckpointStep.FREEZING

    def _is_relied_on(self, checkpoint: Checkpoint) -> bool:
        """Return whether another preemption or a restore already depends on this snapshot and the workload's stop.

        A snapshot on request depends only on the former.
        """
        others = (
            one for one in self._registry.checkpoints_of_workload(checkpoint.workload.uid) if one.uid != checkpoint.uid
        )
        ready = (one for one in others if one.step is CheckpointStep.READY and one.snapshot == checkpoint.snapshot)
        if any(one.is_stopped_after_commit for one in ready):
            return True
        returns = self._registry.restores_of_identity(checkpoint.identity, checkpoint.workload)
        return any(one.snapshot == checkpoint.snapshot for one in returns)

    def _is_node_saving_for_eviction(self, node: str) -> bool:
        on_node = self._registry.checkpoints_on_node(node)
        return any(one.is_stopped_after_commit and not one.is_terminal for one in on_node)

    def _cancel_periodic_checkpoints_on(self, nodes: Iterable[str]) -> None:
        """Cancel the periodic checkpoints on these nodes: a scheduler waits for an eviction, but not for them."""
        self._cancel_if_periodic(one.uid for node in nodes for one in self._registry.checkpoints_on_node(node))

    def _cancel_if_periodic(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            checkpoint = self._registry.checkpoints[uid]  # a gang member may have failed it
            is_revocable = not checkpoint.is_terminal and checkpoint.step not in IRREVERSIBLE_CHECKPOINT_STEPS
            if checkpoint.is_periodic and is_revocable:
                self._steps.fail(checkpoint, Cause.CANCELLED, "an eviction on its node is saved first")

    def _thaw_saved_workload(self, checkpoint: Checkpoint) -> None:
        """Thaw a committed but live workload: its snapshot stays valid, and the next preemption makes another one."""
        if self._is_relied_on(checkpoint):
            return
        self._steps.take_transition(
            checkpoint,
            Cause.SPARED,
            eviction_cancelled=True,
            kill_pending=False,
            verdict=Verdict.NOT_NEEDED,
            deadline=max(checkpoint.deadline, self._turn.now),
        )
        hold = self._registry.holds.get(checkpoint.signal_uid)
        if hold is not None and checkpoint.workload.uid in hold.verdicts:
            verdicts = hold.verdicts | {checkpoint.workload.uid: Verdict.NOT_NEEDED}
            self._registry.update(replace(hold, verdicts=verdicts))

    def _pass_commit_barrier(self, checkpoint: Checkpoint) -> None:
        if not self._registry.checkpoint_set_of(checkpoint).are_all({CheckpointStep.COMMITTED}):
            return
        for member in self._registry.members_of_set(checkpoint):
            if member.is_stopped_after_commit:
                decided = self._steps.take_transition(member, Cause.KILL_ALL, verdict=Verdict.COMMITTED)
            else:
                decided = self._steps.take_transition(member, Cause.THAW_ALL)
            if decided is not None and decided.workload_gone:
                self._steps.take_transition(decided, Cause.ENDED)
