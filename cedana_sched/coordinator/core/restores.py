"""Restore rules: which workload restores from which snapshot, when, and how failures are handled.

A restore waits while a snapshot of its identity may still be committed, and while another workload may still run under
the identity. Each snapshot is claimed by at most one restore, from the choice until the workload has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import restore_obstacles, user_events
from cedana_sched.coordinator.core.events import NodeLost
from cedana_sched.coordinator.core.record_registry import holds_identity, is_unconfirmed
from cedana_sched.coordinator.core.restore_steps import (
    BEFORE_RESTORING,
    IRREVERSIBLE_RESTORE_STEPS,
    RestoreSteps,
    inherited_failures,
    order_of,
)
from cedana_sched.coordinator.core.run_on import mark_resumed
from cedana_sched.coordinator.core.snapshot_lookups import SnapshotLookups
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    Order,
    RestoreFailed,
    RestoreOutcome,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StageFailed,
    StageProgress,
    StartedCold,
    WorkloadFailed,
)
from cedana_sched.model.records import TERMINAL_RESTORE_STEPS, Restore, RestoreStep


def restore_uid_of(workload_uid: str, incarnation: int) -> str:
    """Return the uid of one attempt; deterministic, so a repeated report of an incarnation yields the same uid."""
    return f"restore.{workload_uid}.{incarnation}" if incarnation else f"restore.{workload_uid}"


class Restores:
    """All restores of one core."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._registry = turn.registry
        self._steps = RestoreSteps(turn)
        self.lookups = SnapshotLookups(turn, self._steps)
        self._answers: Mapping[type[RestoreOutcome], Callable[[Restore, Any], None]] = {
            SnapshotFound: self.lookups.apply_found,
            StageProgress: self._on_stage_progress,
            Staged: self._on_staged,
            StageFailed: self._on_stage_failed,
            RestoreSucceeded: self._on_restore_succeeded,
            RestoreFailed: self._on_restore_failed,
            StartedCold: self._on_started_cold,
            WorkloadFailed: self._on_workload_failed,
        }

    # -- events

    def start(self, adapter: str, report: Starting) -> None:
        """Handle a workload that was bound to a node or restarted there; a repeated report may name a rival."""
        earlier = self._registry.latest_restore_of_workload(report.workload.uid)
        if earlier is not None:
            self._end_wait_for_report(earlier)
            if report.incarnation <= earlier.incarnation:
                self._refuse_if_rival_runs(self._refresh_waiting_restore(earlier, report), report)
                return
            if earlier.step in {RestoreStep.WAITING, RestoreStep.STAGING}:  # no files were written into the earlier one
                earlier = replace(earlier, incarnation=report.incarnation)
                self._registry.update(earlier)
                self._refuse_if_rival_runs(self._refresh_waiting_restore(earlier, report), report)
                return
            self._steps.take_transition(earlier, Cause.BEGINS_AGAIN, finished_at=self._turn.now)
            self._turn.publish(user_events.workload_restarted_event(earlier, report.workload))
        restore = Restore(
            uid=restore_uid_of(report.workload.uid, report.incarnation),
            adapter=adapter,
            workload=report.workload,
            identity=report.identity,
            policy=report.policy,
            step=RestoreStep.WAITING,
            created_at=self._turn.now,
            deadline=self._turn.now + report.policy.restore_deadline_seconds,
            requested_snapshot=report.requested_snapshot,
            newest_snapshot=report.newest_snapshot,
            predecessor=report.predecessor,
            incarnation=report.incarnation,
        )
        restore = replace(restore, quick_failures=inherited_failures(self._registry, restore))
        self._registry.add(restore, self._turn.now, f"{adapter} starts {report.workload.name}")
        self._note_snapshots(restore, report)
        self._refuse_if_rival_runs(restore, report)

    def apply_answer(self, outcome: RestoreOutcome) -> None:
        """Apply an agent's answer; drop answers for expired records."""
        restore = self._registry.restores.get(outcome.restore_uid)
        if restore is not None:
            self._answers[type(outcome)](restore, outcome)

    def close_if_given_up(self, workload_uid: str) -> None:
        """Apply the node's confirmation that no process of the workload runs or will run; closes a failed restore."""
        restore = self._registry.latest_restore_of_workload(workload_uid)
        if restore is not None and is_unconfirmed(restore):
            self._registry.update(replace(restore, finished_at=self._turn.now, snapshot=None))
            self._on_order_confirmed(restore.uid)

    def lose_order(self, restore: Restore, order: Order, why: str) -> None:
        """Report the delay of a lost order, and repeat the order with backoff if the step still waits on it."""
        current = order_of(restore)
        self._report_delay(restore, why)
        if current is None or type(current) is type(order):
            self._turn.hasten_repetition(restore.uid)
            self.set_next_timer(restore)

    def on_workload_ended(self, workload_uid: str, ended: Ended | None = None) -> None:
        """End the workload's restore, which frees its claim."""
        self._drop_saved_rival(workload_uid)
        restore = self._registry.latest_restore_of_workload(workload_uid)
        if restore is not None:
            self._steps.end(restore, Cause.ENDED, ended)

    def lose_node(self, lost: NodeLost) -> None:
        """End every restore on a lost node."""
        for checkpoint in self._registry.checkpoints_on_node(lost.node):
            self._drop_saved_rival(checkpoint.workload.uid)
        for restore in self._registry.restores_on_node(lost.node):
            if restore.step is not RestoreStep.ENDED and lost.ends(restore):
                self._steps.end(restore, Cause.NODE_LOST)

    def repeat_after_recovery(self, restore: Restore) -> None:
        """Repeat the order of the current step (recovery); the adapter's next report repeats that of a waiting one."""
        order = order_of(restore)
        if order is not None:
            self._turn.send_order(restore.uid, restore.workload.node, order)
        elif restore.step is RestoreStep.WAITING:  # no record has a refusal
            self._steps.transient[restore.uid].awaits_report = True
        self.set_next_timer(restore)

    def handle_timer(self, restore: Restore) -> None:
        """Handle an expired timer: the deadline, an order to repeat, or the record's retention."""
        now = self._turn.now
        if restore.finished_at is not None:
            self._steps.drop_if_expired(restore, restore.finished_at)
            return
        if restore.step in IRREVERSIBLE_RESTORE_STEPS:
            if now >= restore.deadline + self._turn.timing.confirm:
                self._steps.take_transition(restore, Cause.UNCONFIRMED)
                return
        elif not is_unconfirmed(restore) and now >= restore.deadline:
            self._handle_deadline(restore)
            return
        if self._turn.take_due_repetition(restore.uid):
            order = order_of(restore) or self.lookups.order_of(restore)
            if order is not None:
                self._turn.send_once(restore.workload.node, order)
        self.set_next_timer(restore)

    # -- reconciliation

    def reconcile(self, restore: Restore) -> None:
        """Reconcile a changed restore: look for a snapshot if unblocked, and wake the restores that it blocked."""
        self.lookups.look_up_if_unblocked(restore)
        if not holds_identity(restore):
            self.lookups.recheck_waiting(restore)
        self.set_next_timer(self._registry.restores[restore.uid])

    def set_next_timer(self, restore: Restore) -> None:
        """Set the restore's next timer."""
        self._steps.set_next_timer(restore)

    # -- starts

    def _drop_saved_rival(self, workload_uid: str) -> None:
        """Wait no longer for the end of a workload that has ended, or is lost: no failure of its save matters now."""
        for checkpoint in self._registry.checkpoints_of_workload(workload_uid):
            for restore in self._registry.restores_of_identity(checkpoint.identity, checkpoint.workload):
                notes = self._steps.transient.get(restore.uid)  # one that is over has none
                if notes is not None and notes.saved_rival is not None and notes.saved_rival.uid == workload_uid:
                    notes.saved_rival = None

    def _refresh_waiting_restore(self, restore: Restore, report: Starting) -> Restore:
        """Refresh `predecessor`, and `newest_snapshot`: a user may have deleted snapshots on purpose meanwhile."""
        self._note_snapshots(restore, report)
        self._publish_lasting_wait(restore, report)
        known = (restore.newest_snapshot, restore.predecessor)
        if restore.step is not RestoreStep.WAITING or known == (report.newest_snapshot, report.predecessor):
            return restore
        waited = restore.predecessor is not None
        waits = report.predecessor is not None
        is_news = waited != waits or restore.newest_snapshot != report.newest_snapshot
        restore = replace(restore, newest_snapshot=report.newest_snapshot, predecessor=report.predecessor)
        self._registry.update(restore, stored=is_news)  # another reason to wait is not worth a write
        if waited != waits:
            self._registry.mark_for_reconciliation(restore.uid)
            restore = self._steps.extend_for_wait(restore)  # the wait does not count
        return restore

    def _note_snapshots(self, restore: Restore, report: Starting) -> None:
        if restore.step in BEFORE_RESTORING:
            notes = self._steps.transient[restore.uid]
            notes.ran_on, notes.saved = report.ran_on, report.saved

    def _end_wait_for_report(self, restore: Restore) -> None:
        notes = self._steps.transient[restore.uid]
        if notes.awaits_report:
            notes.awaits_report = False
            self._registry.mark_for_reconciliation(restore.uid)

    def _publish_lasting_wait(self, restore: Restore, report: Starting) -> None:
        """Publish once why the restore waits for its predecessor; a wait that is over at the next report is silent."""
        if restore.step is not RestoreStep.WAITING or restore.predecessor is None or report.predecessor is None:
            return
        notes = self._steps.transient[restore.uid]
        if not notes.is_wait_published:
            notes.is_wait_published = True
            self._turn.publish(user_events.predecessor_runs_event(restore, report.predecessor))

    def _refuse_if_rival_runs(self, restore: Restore, report: Starting) -> None:
        """Refuse a restore whose identity another workload runs under, unless that workload is saved, and then stopped.

        A restore whose request names no snapshot is refused too.
        """
        if restore.step is not RestoreStep.WAITING:
            return
        notes = self._steps.transient[restore.uid]
        if report.continues:
            notes.is_promised = True
        if report.loss is not None and restore.loss is None:
            restore = replace(restore, loss=report.loss)
            self._registry.update(restore)
            self._registry.mark_for_reconciliation(restore.uid)
        if report.refused is not None:
            notes.rival = report.refused
            self.lookups.look_up_if_unblocked(restore)
            return
        notes.saved_rival, rival = None, report.rival
        if rival is None:
            return
        if (
            report.continues
            and (theirs := self._registry.latest_restore_of_workload(rival.uid))
            and holds_identity(theirs)
        ):
            return
        notes.saved_rival = rival
        self.lookups.look_up_if_unblocked(restore)

    # -- answers

    def _on_staged(self, restore: Restore, _: Staged) -> None:
        moved = self._steps.take_transition(restore, Cause.STAGED, resumed_snapshot=restore.snapshot)
        if moved is not None:
            mark_resumed(self._registry, moved)

    def _on_restore_succeeded(self, restore: Restore, succeeded: RestoreSucceeded) -> None:
        moved = self._steps.take_transition(
            restore, Cause.RESTORE_SUCCEEDED, cold=False, failure=None, running_at=self._turn.now
        )
        if moved is not None and moved.step is RestoreStep.RUNNING and succeeded.changed_files:
            self._turn.publish(user_events.files_changed_event(moved, succeeded.changed_files))

    def _on_started_cold(self, restore: Restore, _: StartedCold) -> None:
        self._steps.take_transition(restore, Cause.STARTED_COLD, running_at=self._turn.now)

    def _on_restore_failed(self, restore: Restore, failed: RestoreFailed) -> None:
        if restore.step is RestoreStep.RESTORING:
            why = f"{restore.snapshot} could not be continued: {failed.why}"
            if failed.files_changed:
                self._steps.apply_change_policy(restore, why)
            else:
                self._steps.apply_failure_policy(restore, why)
        else:
            self._steps.take_transition(restore, Cause.RESTORE_FAILED)

    def _on_workload_failed(self, restore: Restore, _: WorkloadFailed) -> None:
        """Record that the node failed the workload. A restore in progress keeps its claim until the workload ends."""
        finished_at = self._turn.now if restore.snapshot is None else None
        moved = self._steps.take_transition(restore, Cause.WORKLOAD_FAILED, finished_at=finished_at)
        if moved is None and is_unconfirmed(restore):
            self._registry.update(replace(restore, finished_at=finished_at))
            self._on_order_confirmed(restore.uid)

    def _on_order_confirmed(self, uid: str) -> None:
        """Stop repeating the order, and reconcile the records that waited for the answer."""
        self._turn.stop_repeating(uid)
        self._registry.mark_for_reconciliation(uid)

    def _report_delay(self, restore: Restore, why: str) -> None:
        notes = self._steps.transient[restore.uid]
        if notes.trouble is None and restore.step not in TERMINAL_RESTORE_STEPS:
            self._turn.publish(user_events.restore_delayed_event(restore, why, self._turn.now))
        notes.trouble = why

    def _on_stage_progress(self, restore: Restore, progress: StageProgress) -> None:
        """Extend the deadline when new bytes arrive, up to a bound; re-fetched bytes do not extend it."""
        if restore.step is not RestoreStep.STAGING:
            return
        notes = self._steps.transient[restore.uid]
        if progress.done_bytes <= notes.staged_bytes:
            return
        notes.staged_bytes = progress.done_bytes
        self._turn.defer_repetition(restore.uid)
        self._steps.extend_for_progress(restore)

    def _on_stage_failed(self, restore: Restore, failed: StageFailed) -> None:
        if restore.step is RestoreStep.WAITING:
            if self._steps.transient[restore.uid].is_finding:  # repeated until the deadline: a snapshot may exist
                self._report_delay(restore, failed.why)
                self._turn.hasten_repetition(restore.uid)
                self.set_next_timer(restore)
            return
        if restore.step is not RestoreStep.STAGING:
            self._steps.take_transition(restore, Cause.STAGE_FAILED)
            return
        notes = self._steps.transient[restore.uid]
        notes.tries += 1
        pause = self._turn.timing.retry_backoff_within(notes.tries, restore.deadline - self._turn.now)
        if failed.retryable and pause is not None:
            self._report_delay(restore, failed.why)
            self._turn.repeat_order_in(restore.uid, pause)
            self.set_next_timer(restore)
        elif failed.damaged and restore.requested_snapshot is None and restore.snapshot is not None:
            self._look_for_older(restore, restore.snapshot, failed.why)
        else:
            self._steps.apply_failure_policy(restore, f"{restore.snapshot} could not be fetched: {failed.why}")

    def _look_for_older(self, restore: Restore, damaged: SnapshotRef, why: str) -> None:
        if (refused := restore_obstacles.too_many_damaged_refusal(restore, damaged, why)) is not None:
            self._steps.apply_failure_policy(restore, refused)
            return
        self._turn.publish(user_events.snapshot_damaged_event(restore, damaged, why))
        skipped = (*restore.damaged, damaged)
        self._steps.take_transition(restore, Cause.DAMAGED, snapshot=None, manifest_digest="", damaged=skipped)
        self._steps.transient[restore.uid].trouble = why

    def _handle_deadline(self, restore: Restore) -> None:
        """Handle the deadline. Time spent waiting for checkpoints in flight, which have deadlines, does not count."""
        is_waiting = restore.step is RestoreStep.WAITING
        in_flight = restore_obstacles.checkpoints_awaited_by(self._registry, restore) if is_waiting else []
        mine = restore_obstacles.checkpoints_of_restarted_workload(self._registry, restore) if is_waiting else []
        if self._steps.extend_for_checkpoints(restore, in_flight, mine):
            return
        if is_waiting and restore.predecessor is not None:
            later = self._steps.extend_for_wait(restore)
            if later.deadline > self._turn.now:
                self.set_next_timer(later)
                return
        seconds = restore.deadline - restore.created_at
        why = f"not restored within {user_events.format_seconds(seconds)}"
        if mine:  # evicted by its scheduler, but not deleted
            why += f": its eviction was released with {mine[0].snapshot}, and it is still there"
            self._steps.take_transition(restore, Cause.GIVE_UP, failure=why)
            return
        if is_waiting and (blocker := self.lookups.blocked_by(restore)) is not None:
            why += f", because {blocker}"
        elif (trouble := self._steps.transient[restore.uid].trouble) is not None:
            why += f": {trouble}"
        self._steps.apply_failure_policy(restore, why, keep_claim=restore.step is RestoreStep.RESTORING)
