"""Restore rules: which workload restores from which snapshot, when, and how failures are handled.

A restore waits while a snapshot of its identity may still be committed, and while another workload may still run under
the identity. Each snapshot is claimed by at most one restore, from the choice until the workload has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import messages, obstacles
from cedana_sched.coordinator.core.book import holds_identity, is_unconfirmed
from cedana_sched.coordinator.core.restore_steps import CLOSING, RestoreSteps, inherited_failures, lookup_of, order_of
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    Order,
    RestoreFailed,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StageFailed,
    StageProgress,
    StartedCold,
    WorkloadFailed,
)
from cedana_sched.model.records import TERMINAL_RESTORE_STEPS, Checkpoint, CheckpointStep, Restore, RestoreStep

RestoreOutcome = (
    SnapshotFound
    | StageProgress
    | Staged
    | StageFailed
    | RestoreSucceeded
    | RestoreFailed
    | StartedCold
    | WorkloadFailed
)


def uid_of(workload_uid: str, beginning: int) -> str:
    """Return the uid of one attempt; deterministic, so a repeated report of an incarnation yields the same uid."""
    return f"restore.{workload_uid}.{beginning}" if beginning else f"restore.{workload_uid}"


class Restores:
    """All restores of one core."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._book = turn.book
        self._steps = RestoreSteps(turn)
        self._answers: Mapping[type[RestoreOutcome], Callable[[Restore, Any], None]] = {
            SnapshotFound: self._found,
            StageProgress: self._progressed,
            Staged: self._staged,
            StageFailed: self._stage_failed,
            RestoreSucceeded: self._succeeded,
            RestoreFailed: self._failed,
            StartedCold: self._started_cold,
            WorkloadFailed: self._gave_up,
        }

    # -- events

    def start(self, adapter: str, report: Starting) -> None:
        """Handle a workload that was bound to a node or restarted there; a repeated report may name a rival."""
        earlier = self._book.restore_of(report.workload.uid)
        if earlier is not None:
            if report.incarnation <= earlier.incarnation:
                self._refuse_beside(self._as_committed_now(earlier, report), report)
                return
            if earlier.step in {RestoreStep.WAITING, RestoreStep.STAGING}:  # no files were written into the earlier one
                self._book.update(replace(earlier, incarnation=report.incarnation))
                return
            self._steps.move(earlier, Cause.BEGINS_AGAIN, finished_at=self._turn.now)
            self._turn.publish(messages.of_new_beginning(earlier, report.workload))
        restore = Restore(
            uid=uid_of(report.workload.uid, report.incarnation),
            adapter=adapter,
            workload=report.workload,
            identity=report.identity,
            policy=report.policy,
            step=RestoreStep.WAITING,
            created_at=self._turn.now,
            deadline=self._turn.now + report.policy.restore_deadline_seconds,
            requested_snapshot=report.requested_snapshot,
            newest_snapshot=report.newest_snapshot,
            incarnation=report.incarnation,
        )
        restore = replace(restore, quick_failures=inherited_failures(self._book, restore))
        self._book.add(restore, self._turn.now, f"{adapter} starts {report.workload.name}")
        self._refuse_beside(restore, report)

    def answer(self, outcome: RestoreOutcome) -> None:
        """Apply an agent's answer; drop answers for expired records."""
        restore = self._book.restores.get(outcome.restore_uid)
        if restore is not None:
            self._answers[type(outcome)](restore, outcome)

    def close_if_given_up(self, workload_uid: str) -> None:
        """Apply the node's confirmation that no process of the workload runs or will run; closes a failed restore."""
        restore = self._book.restore_of(workload_uid)
        if restore is not None and is_unconfirmed(restore):
            self._book.update(replace(restore, finished_at=self._turn.now, snapshot=None))
            self._confirm(restore.uid)

    def lose_order(self, restore: Restore, order: Order, why: str) -> None:
        """Report the delay of a lost order, and repeat the order with backoff if the step still waits on it."""
        current = order_of(restore)
        self._report_delay(restore, why)
        if current is None or type(current) is type(order):
            self._turn.hasten_repetition(restore.uid)
            self.arm(restore)

    def end_workload(self, workload_uid: str, ended: Ended | None = None) -> None:
        """End the workload's restore, which frees its claim."""
        restore = self._book.restore_of(workload_uid)
        if restore is not None:
            self._steps.end(restore, Cause.ENDED, ended)

    def lose_node(self, node: str) -> None:
        """End every restore on a lost node."""
        for restore in self._book.restores_on_node(node):
            if restore.step is not RestoreStep.ENDED:
                self._steps.end(restore, Cause.NODE_LOST)

    def repeat(self, restore: Restore) -> None:
        """Repeat the order of the current step (recovery); reconciliation repeats the lookup of a waiting restore."""
        order = order_of(restore)
        if order is not None:
            self._turn.order(restore.uid, restore.workload.node, order)
        self.arm(restore)

    def handle_timer(self, restore: Restore) -> None:
        """Handle an expired timer: the deadline, an order to repeat, or the record's retention."""
        now = self._turn.now
        if restore.finished_at is not None:
            self._steps.expire(restore, restore.finished_at)
            return
        if restore.step in CLOSING:
            if now >= restore.deadline + self._turn.timing.confirm:
                self._steps.move(restore, Cause.UNCONFIRMED)
                return
        elif not is_unconfirmed(restore) and now >= restore.deadline:
            self._pass_deadline(restore)
            return
        if self._turn.take_repetition(restore.uid):
            order = order_of(restore)
            if order is None and self._steps.notes[restore.uid].is_finding:
                order = lookup_of(self._book, restore, now)
            if order is not None:
                self._turn.send_once(restore.workload.node, order)
        self.arm(restore)

    # -- reconciliation

    def reconcile(self, restore: Restore) -> None:
        """Reconcile a changed restore: look for a snapshot if unblocked, and wake the restores that it blocked."""
        self.look(restore)
        if not holds_identity(restore):
            self.wake(restore)
        self.arm(self._book.restores[restore.uid])

    def look(self, restore: Restore) -> None:
        """Order a lookup in the store, unless the restore is blocked or a lookup is in flight."""
        if restore.step is not RestoreStep.WAITING:
            return
        notes = self._steps.notes[restore.uid]
        problem = obstacles.forbidden(restore) or notes.rival
        if problem and not obstacles.own(self._book, restore):
            self._steps.refuse(restore, problem)
        elif self._blocked_by(restore) is not None:
            if obstacles.in_flight(self._book, restore):
                notes.awaits_checkpoint = True
            elif notes.awaits_checkpoint:  # the saved pod may exist for a while yet
                notes.awaits_checkpoint, notes.awaits_end = False, True
                self.arm(self._steps.extend_for_wait(restore))
            if restore.requested_snapshot is not None:
                self._steps.wants.add(restore.uid, restore.requested_snapshot)
            if notes.is_finding:
                self._stop_finding(restore)
        elif not notes.is_finding:
            notes.is_finding = True
            if notes.awaits_checkpoint or notes.awaits_end:  # time spent waiting does not count
                notes.awaits_checkpoint = notes.awaits_end = False
                restore = self._steps.extend_for_wait(restore)
            self._find(restore)

    def wake(self, changed: Checkpoint | Restore) -> None:
        """Re-evaluate restores that may have waited for this checkpoint or restore."""
        for restore in self._book.restores_of(changed.identity, changed.workload):
            self.look(self._book.restores[restore.uid])  # re-read: an earlier one may just have changed it
        for uid in self._steps.wants.of(changed.identity, changed.snapshot):
            waiting = self._book.restores.get(uid)
            if waiting is not None:
                self.look(waiting)

    def arm(self, restore: Restore) -> None:
        """Set the restore's next timer."""
        self._steps.arm(restore)

    # -- starts

    def _as_committed_now(self, restore: Restore, report: Starting) -> Restore:
        """Refresh `newest_snapshot`: a user may have deleted snapshots on purpose meanwhile."""
        if restore.step is not RestoreStep.WAITING or restore.newest_snapshot == report.newest_snapshot:
            return restore
        restore = replace(restore, newest_snapshot=report.newest_snapshot)
        self._book.update(restore)
        return restore

    def _refuse_beside(self, restore: Restore, report: Starting) -> None:
        """Refuse a restore whose identity another workload runs under, unless that workload is being saved.

        A restore whose request names no snapshot is refused too.
        """
        if restore.step is not RestoreStep.WAITING:
            return
        notes = self._steps.notes[restore.uid]
        if report.continues:
            notes.is_promised = True
        if report.refused is not None:
            notes.rival = report.refused
            self.look(restore)
            return
        rival = report.rival
        if rival is None:
            return
        if report.continues and (theirs := self._book.restore_of(rival.uid)) and holds_identity(theirs):
            return
        if all(one.step is CheckpointStep.FAILED for one in self._book.of_workload(rival.uid)):
            notes.rival = obstacles.rivalry(restore.identity, rival.name)
            self.look(restore)

    # -- answers

    def _staged(self, restore: Restore, _: Staged) -> None:
        self._steps.move(restore, Cause.STAGED)

    def _succeeded(self, restore: Restore, _: RestoreSucceeded) -> None:
        self._steps.move(restore, Cause.RESTORE_SUCCEEDED, cold=False, failure=None, running_at=self._turn.now)

    def _started_cold(self, restore: Restore, _: StartedCold) -> None:
        self._steps.move(restore, Cause.STARTED_COLD, running_at=self._turn.now)

    def _failed(self, restore: Restore, failed: RestoreFailed) -> None:
        if restore.step is RestoreStep.RESTORING:
            self._steps.refuse(restore, f"{restore.snapshot} could not be continued: {failed.why}")
        else:
            self._steps.move(restore, Cause.CONTINUE_FAILED)

    def _gave_up(self, restore: Restore, _: WorkloadFailed) -> None:
        """Record that the node failed the workload. A restore in progress keeps its claim until the workload ends."""
        finished_at = self._turn.now if restore.snapshot is None else None
        moved = self._steps.move(restore, Cause.WORKLOAD_FAILED, finished_at=finished_at)
        if moved is None and is_unconfirmed(restore):
            self._book.update(replace(restore, finished_at=finished_at))
            self._confirm(restore.uid)

    def _confirm(self, uid: str) -> None:
        """Stop repeating the order, and reconcile the records that waited for the answer."""
        self._turn.stop_repeating(uid)
        self._book.touch(uid)

    def _report_delay(self, restore: Restore, why: str) -> None:
        notes = self._steps.notes[restore.uid]
        if notes.trouble is None and restore.step not in TERMINAL_RESTORE_STEPS:
            self._turn.publish(messages.of_delay(restore, why, self._turn.now))
        notes.trouble = why

    def _find(self, restore: Restore) -> None:
        inherited = inherited_failures(self._book, restore)
        if inherited != restore.quick_failures:
            restore = replace(restore, quick_failures=inherited)
            self._book.update(restore)
        if restore.requested_snapshot in restore.set_aside:
            self._steps.refuse(restore, messages.set_aside(restore))
            return
        self._turn.order(restore.uid, restore.workload.node, lookup_of(self._book, restore, self._turn.now))
        self.arm(restore)

    def _stop_finding(self, restore: Restore) -> None:
        self._steps.notes[restore.uid].is_finding = False
        self._turn.stop_repeating(restore.uid)

    def _found(self, restore: Restore, found: SnapshotFound) -> None:
        if restore.step is not RestoreStep.WAITING or not self._steps.notes[restore.uid].is_finding:
            self._steps.move(restore, Cause.SNAPSHOT_FOUND)
            return
        notes, snapshot = self._steps.notes[restore.uid], found.snapshot
        if (refused := obstacles.objection(self._book, restore, found, notes.trouble)) is not None:
            self._steps.refuse(restore, refused)
        elif snapshot is None:
            why = obstacles.why_nothing(self._book, restore, is_promised=notes.is_promised)
            if notes.is_promised and why is not None:
                self._steps.refuse(restore, why)
            else:
                self._steps.move(restore, Cause.START_COLD, cold=True, failure=why)
        elif self._is_stale(restore, snapshot):
            return
        elif obstacles.claimed_by_other(self._book, restore, snapshot):
            self._steps.wants.add(restore.uid, snapshot)
            self._stop_finding(restore)
            self.arm(restore)
        else:
            manifest = obstacles.manifest_of(self._book, restore, snapshot)
            self._steps.move(restore, Cause.CHOSEN, snapshot=snapshot, manifest_digest=manifest)

    def _is_stale(self, restore: Restore, snapshot: SnapshotRef) -> bool:
        """Return whether to repeat the lookup because the answer predates a known commit."""
        if not obstacles.is_older_than_committed(self._book, restore, snapshot):
            return False
        notes = self._steps.notes[restore.uid]
        notes.tries += 1
        if notes.tries >= obstacles.STALE_ANSWERS:
            return False
        self._turn.repeat_in(restore.uid, obstacles.STALE_SECONDS)
        self.arm(restore)
        return True

    def _progressed(self, restore: Restore, progress: StageProgress) -> None:
        """Extend the deadline when new bytes arrive, up to a bound; re-fetched bytes do not extend it."""
        if restore.step is not RestoreStep.STAGING:
            return
        notes = self._steps.notes[restore.uid]
        if progress.done_bytes <= notes.staged_bytes:
            return
        notes.staged_bytes = progress.done_bytes
        self._turn.defer_repetition(restore.uid)
        self._steps.extend_for_progress(restore)

    def _stage_failed(self, restore: Restore, failed: StageFailed) -> None:
        if restore.step is RestoreStep.WAITING:
            if self._steps.notes[restore.uid].is_finding:  # repeated until the deadline: a snapshot may exist
                self._report_delay(restore, failed.why)
                self._turn.hasten_repetition(restore.uid)
                self.arm(restore)
            return
        if restore.step is not RestoreStep.STAGING:
            self._steps.move(restore, Cause.STAGE_FAILED)
            return
        notes = self._steps.notes[restore.uid]
        notes.tries += 1
        pause = self._turn.timing.pause_within(notes.tries, restore.deadline - self._turn.now)
        if failed.retryable and pause is not None:
            self._report_delay(restore, failed.why)
            self._turn.repeat_in(restore.uid, pause)
            self.arm(restore)
        elif failed.damaged and restore.requested_snapshot is None and restore.snapshot is not None:
            self._look_for_older(restore, restore.snapshot, failed.why)
        else:
            self._steps.refuse(restore, f"{restore.snapshot} could not be fetched: {failed.why}")

    def _look_for_older(self, restore: Restore, damaged: SnapshotRef, why: str) -> None:
        if (refused := obstacles.too_many_damaged(restore, damaged, why)) is not None:
            self._steps.refuse(restore, refused)
            return
        self._turn.publish(messages.of_damage(restore, damaged, why))
        skipped = (*restore.damaged, damaged)
        self._steps.move(restore, Cause.DAMAGED, snapshot=None, manifest_digest="", damaged=skipped)
        self._steps.notes[restore.uid].trouble = why

    def _pass_deadline(self, restore: Restore) -> None:
        """Handle the deadline. Time spent waiting for checkpoints in flight, which have deadlines, does not count."""
        is_waiting = restore.step is RestoreStep.WAITING
        in_flight = obstacles.in_flight(self._book, restore) if is_waiting else []
        mine = obstacles.own(self._book, restore) if is_waiting else []
        if self._steps.extend_for_checkpoints(restore, in_flight, mine):
            return
        seconds = restore.deadline - restore.created_at
        why = f"not restored within {messages.seconds(seconds)}"
        if mine:  # evicted by its scheduler, but not deleted
            why += f": its eviction was released with {mine[0].snapshot}, and it is still there"
            self._steps.move(restore, Cause.GIVE_UP, failure=why)
            return
        if is_waiting and (blocker := self._blocked_by(restore)) is not None:
            why += f", because {blocker}"
        elif (trouble := self._steps.notes[restore.uid].trouble) is not None:
            why += f": {trouble}"
        self._steps.refuse(restore, why, keep_claim=restore.step is RestoreStep.RESTORING)

    def _blocked_by(self, restore: Restore) -> str | None:
        wanted = self._steps.wants.get(restore.uid, restore.requested_snapshot)
        return obstacles.blocked_by(self._book, restore, wanted)
