"""How a waiting restore gets its snapshot: it waits until nothing blocks it, then its node looks the snapshot up.

Nothing is looked up while a snapshot of the identity may still be committed, or another workload may still run under
the identity.
"""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.coordinator.core import restore_obstacles, user_events
from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.coordinator.core.restore_steps import RestoreSteps, inherited_failures
from cedana_sched.coordinator.core.run_on import has_run_on
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import FindSnapshot, SnapshotFound
from cedana_sched.model.policy import OnNodeLoss
from cedana_sched.model.records import Checkpoint, Restore, RestoreStep


def lookup_order_of(registry: RecordRegistry, restore: Restore, now: float) -> FindSnapshot:
    """Return the order that looks up the restore's snapshot in the store."""
    known = registry.checkpoints_of_identity(restore_obstacles.sought_identity(restore), restore.workload)
    excluding = tuple(checkpoint.uid for checkpoint in known if checkpoint.cancelled)
    time_for_older = restore.policy.restore_deadline_seconds / 2
    avoiding = tuple(sorted(ref.generation for ref in restore.passed_over if ref.identity == restore.identity))
    return FindSnapshot(
        restore.uid,
        restore.identity,
        restore.requested_snapshot,
        excluding,
        () if restore.requested_snapshot else avoiding,
        newer_seconds=max(restore.deadline - time_for_older - now, 0.0),
    )


class SnapshotLookups:
    """The lookups of all waiting restores of one core."""

    def __init__(self, turn: Turn, steps: RestoreSteps) -> None:
        self._turn = turn
        self._registry = turn.registry
        self._steps = steps

    def look_up_if_unblocked(self, restore: Restore) -> None:
        """Order a lookup in the store, unless the restore is blocked or a lookup is in flight."""
        if restore.step is not RestoreStep.WAITING:
            return
        notes = self._steps.transient[restore.uid]
        if notes.awaits_report:
            return
        self._refuse_if_rival_runs_on(restore)
        problem = restore_obstacles.request_refusal(restore) or notes.rival
        must_wait = restore.predecessor or restore_obstacles.checkpoints_of_restarted_workload(self._registry, restore)
        if problem and not must_wait:
            self._steps.apply_failure_policy(restore, problem)
        elif self.blocked_by(restore) is not None:
            if restore_obstacles.checkpoints_awaited_by(self._registry, restore):
                notes.awaits_checkpoint = True
            elif notes.awaits_checkpoint:  # the saved pod may exist for a while yet
                notes.awaits_checkpoint, notes.awaits_end = False, True
                self._steps.set_next_timer(self._steps.extend_for_wait(restore))
            if restore.requested_snapshot is not None:
                self._steps.wants.add(restore.uid, restore.requested_snapshot)
            if notes.is_finding:
                self._stop_finding(restore)
        elif (loss := self._recorded_loss(restore)) is not None:
            self._steps.apply_loss_policy(self._registry.restores[restore.uid], loss)
        elif not notes.is_finding:
            restore = self._registry.restores[restore.uid]
            notes.is_finding = True
            if notes.awaits_checkpoint or notes.awaits_end:  # time spent waiting does not count
                notes.awaits_checkpoint = notes.awaits_end = False
                restore = self._steps.extend_for_wait(restore)
            self._find(restore)

    def _refuse_if_rival_runs_on(self, restore: Restore) -> None:
        notes = self._steps.transient[restore.uid]
        rival = notes.saved_rival
        if rival is not None and not restore_obstacles.is_being_stopped(self._registry, rival.uid):
            notes.rival = restore_obstacles.format_rivalry_refusal(restore.identity, rival.name)
            notes.saved_rival = None

    def recheck_waiting(self, changed: Checkpoint | Restore) -> None:
        """Re-evaluate restores that may have waited for this checkpoint or restore."""
        for restore in self._registry.restores_of_identity(changed.identity, changed.workload):
            self.look_up_if_unblocked(
                self._registry.restores[restore.uid]
            )  # re-read: an earlier one may just have changed it
        for uid in self._steps.wants.restores_waiting_for(changed.identity, changed.snapshot):
            waiting = self._registry.restores.get(uid)
            if waiting is not None:
                self.look_up_if_unblocked(waiting)

    def order_of(self, restore: Restore) -> FindSnapshot | None:
        """Return the order of the lookup that is in flight; None if there is none."""
        is_finding = self._steps.transient[restore.uid].is_finding
        return lookup_order_of(self._registry, restore, self._turn.now) if is_finding else None

    def apply_found(self, restore: Restore, found: SnapshotFound) -> None:
        """Apply the answer to a lookup: stage the snapshot, look again, start cold, or fail."""
        if restore.step is not RestoreStep.WAITING or not self._steps.transient[restore.uid].is_finding:
            self._steps.take_transition(restore, Cause.SNAPSHOT_FOUND)
            return
        notes, snapshot = self._steps.transient[restore.uid], found.snapshot
        if (
            refused := restore_obstacles.found_snapshot_refusal(self._registry, restore, found, notes.trouble)
        ) is not None:
            self._steps.apply_failure_policy(restore, refused)
        elif snapshot is None:
            why = restore_obstacles.never_committed_reason(self._registry, restore, is_promised=notes.is_promised)
            if notes.is_promised and why is not None:
                self._steps.apply_failure_policy(restore, why)
            else:
                self._steps.take_transition(restore, Cause.START_COLD, cold=True, failure=why)
        elif self._repeat_lookup_if_stale(restore, snapshot):
            return
        elif restore_obstacles.claimed_by_other(self._registry, restore, snapshot):
            self._steps.wants.add(restore.uid, snapshot)
            self._stop_finding(restore)
            self._steps.set_next_timer(restore)
        else:
            manifest = restore_obstacles.manifest_digest_of(self._registry, restore, snapshot)
            ran_on = has_run_on(self._registry, snapshot, restore.workload, notes.ran_on)
            self._steps.take_transition(
                restore, Cause.CHOSEN, snapshot=snapshot, manifest_digest=manifest, ran_on=ran_on
            )

    def blocked_by(self, restore: Restore) -> str | None:
        """Describe what blocks a waiting restore; None if nothing does."""
        wanted = self._steps.wants.get(restore.uid, restore.requested_snapshot)
        return restore_obstacles.blocked_by(self._registry, restore, wanted)

    def _recorded_loss(self, restore: Restore) -> str | None:
        """Record the loss that the restore inherits; return it if the policy does not restore then."""
        loss = self._steps.inherited_loss(restore)
        if loss != restore.loss:
            self._registry.update(replace(restore, loss=loss))
        is_restored = restore.policy.on_node_loss is OnNodeLoss.RESTORE or restore.requested_snapshot is not None
        return None if is_restored else loss

    def _find(self, restore: Restore) -> None:
        inherited = inherited_failures(self._registry, restore)
        if inherited != restore.quick_failures:
            restore = replace(restore, quick_failures=inherited)
            self._registry.update(restore)
        if restore.requested_snapshot in restore.quarantined_snapshots:
            self._steps.apply_failure_policy(restore, user_events.describe_quarantined_snapshots(restore))
            return
        order = lookup_order_of(self._registry, restore, self._turn.now)
        self._turn.send_order(restore.uid, restore.workload.node, order)
        self._steps.set_next_timer(restore)

    def _stop_finding(self, restore: Restore) -> None:
        self._steps.transient[restore.uid].is_finding = False
        self._turn.stop_repeating(restore.uid)

    def _repeat_lookup_if_stale(self, restore: Restore, snapshot: SnapshotRef) -> bool:
        """Return whether to repeat the lookup because the answer predates a known commit."""
        if not restore_obstacles.is_older_than_committed(self._registry, restore, snapshot):
            return False
        notes = self._steps.transient[restore.uid]
        notes.tries += 1
        if notes.tries >= restore_obstacles.STALE_ANSWERS:
            return False
        self._turn.repeat_order_in(restore.uid, restore_obstacles.STALE_SECONDS)
        self._steps.set_next_timer(restore)
        return True
