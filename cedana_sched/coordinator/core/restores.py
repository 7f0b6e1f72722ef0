"""Restore rules: which workload restores from which snapshot, when, and how failures are handled.

A restore waits while a snapshot of its identity may still be committed, and while another workload may still run under
the identity. Each snapshot is claimed by at most one restore, from the choice until the workload has ended.
"""

from __future__ import annotations

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, Starting
from cedana_sched.coordinator.core import deaths, found_snapshots, messages, obstacles, orders, restore_deadlines
from cedana_sched.coordinator.core.book import holds_identity, unconfirmed
from cedana_sched.coordinator.core.groups import Wants
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    RestoreFailed,
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StageFailed,
    StageProgress,
    StartedCold,
    WorkloadFailed,
)
from cedana_sched.model.policy import OnRestoreFailure
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

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._book = context.book
        self._finding: set[str] = set()
        self._awaiting: set[str] = set()  # wait for a checkpoint in flight
        self._unblocking: set[str] = set()  # the awaited checkpoint is terminal, another obstacle remains
        self._promised: set[str] = set()  # started on behalf of a snapshot that the book may not contain
        self._wants = Wants()
        self._stale: dict[str, int] = {}
        self._rivals: dict[str, str] = {}
        """Why a restore is refused once its workload's own checkpoint is terminal."""
        self._staged: dict[str, int] = {}
        """High-water mark of the bytes staged."""
        self._trouble: dict[str, str] = {}
        """Last order failure of each restore; reported if it persists until the deadline."""

    # -- events

    def starting(self, adapter: str, report: Starting) -> None:
        """Handle a workload that was bound to a node or restarted there; a repeated report may name a rival."""
        earlier = self._book.restore_of(report.workload.uid)
        if earlier is not None:
            if report.incarnation <= earlier.incarnation:
                self._refuse_beside(self._as_committed_now(earlier, report), report)
                return
            if earlier.step in {RestoreStep.WAITING, RestoreStep.STAGING}:  # no files were laid into the earlier one
                self._book.update(replace(earlier, incarnation=report.incarnation))
                return
            self._move(earlier, Cause.BEGINS_AGAIN, finished_at=self._context.now)
            messages.of_new_beginning(self._context, earlier, report.workload)
        restore = Restore(
            uid=uid_of(report.workload.uid, report.incarnation),
            adapter=adapter,
            workload=report.workload,
            identity=report.identity,
            policy=report.policy,
            step=RestoreStep.WAITING,
            created_at=self._context.now,
            deadline=self._context.now + report.policy.restore_deadline_seconds,
            requested_snapshot=report.requested_snapshot,
            newest_snapshot=report.newest_snapshot,
            incarnation=report.incarnation,
        )
        restore = replace(restore, quick_failures=deaths.known(self._book, restore))
        self._book.add(restore, self._context.now, f"{adapter} starts {report.workload.name}")
        self._refuse_beside(restore, report)

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
        if report.continues and restore.step is RestoreStep.WAITING:
            self._promised.add(restore.uid)
        if report.refused is not None and restore.step is RestoreStep.WAITING:
            self._rivals[restore.uid] = report.refused
            self.look(restore)
            return
        rival = report.rival
        if rival is None or restore.step is not RestoreStep.WAITING:
            return
        if report.continues and (theirs := self._book.restore_of(rival.uid)) and holds_identity(theirs):
            return
        if all(one.step is CheckpointStep.FAILED for one in self._book.of_workload(rival.uid)):
            self._rivals[restore.uid] = obstacles.rivalry(restore.identity, rival.name)
            self.look(restore)

    def answer(self, outcome: RestoreOutcome) -> None:
        """Apply an agent's answer; drop answers for expired records."""
        restore = self._book.restores.get(outcome.restore_uid)
        if restore is None:
            return
        if isinstance(outcome, SnapshotFound):
            self._found(restore, outcome)
        elif isinstance(outcome, StageProgress):
            self._progressed(restore, outcome.done_bytes)
        elif isinstance(outcome, Staged):
            self._move(restore, Cause.STAGED)
        elif isinstance(outcome, StageFailed):
            self._stage_failed(restore, outcome)
        elif isinstance(outcome, RestoreFailed):
            if restore.step is RestoreStep.RESTORING:
                self._refuse(restore, f"{restore.snapshot} could not be continued: {outcome.why}")
            else:
                self._move(restore, Cause.CONTINUE_FAILED)
        elif isinstance(outcome, RestoreSucceeded):
            self._move(restore, Cause.RESTORE_SUCCEEDED, cold=False, failure=None, running_at=self._context.now)
        elif isinstance(outcome, StartedCold):
            self._move(restore, Cause.STARTED_COLD, running_at=self._context.now)
        else:
            self._gave_up(restore)

    def _gave_up(self, restore: Restore) -> None:
        """Record that the node failed the workload. A restore in progress keeps its claim until the workload ends."""
        finished_at = self._context.now if restore.snapshot is None else None
        if self._move(restore, Cause.WORKLOAD_FAILED, finished_at=finished_at) is None and unconfirmed(restore):
            self._book.update(replace(restore, finished_at=finished_at))
            self._confirmed(restore.uid)

    def nothing_runs(self, workload_uid: str) -> None:
        """Record the node's confirmation that no process of the workload runs or will run; closes a failed restore."""
        restore = self._book.restore_of(workload_uid)
        if restore is not None and unconfirmed(restore):
            self._book.update(replace(restore, finished_at=self._context.now, snapshot=None))
            self._confirmed(restore.uid)

    def _confirmed(self, uid: str) -> None:
        """Stop repeating the order, and reconcile the records that waited for the answer."""
        self._context.answered(uid)
        self._book.touched[uid] = None

    def order_lost(self, restore: Restore, why: str) -> None:
        """Report the delay of a lost order; the order is repeated with backoff."""
        self._is_delayed(restore, why)

    def _is_delayed(self, restore: Restore, why: str) -> None:
        if restore.uid not in self._trouble and restore.step not in TERMINAL_RESTORE_STEPS:
            messages.of_delay(self._context, restore, why)
        self._trouble[restore.uid] = why

    def workload_ended(self, workload_uid: str, ended: Ended | None = None) -> None:
        """End the workload's restore, which frees its claim."""
        restore = self._book.restore_of(workload_uid)
        if restore is not None:
            self._end(restore, Cause.ENDED, ended)

    def node_lost(self, node: str) -> None:
        """End every restore on a lost node."""
        for restore in self._book.restores_on_node(node):
            if restore.step is not RestoreStep.ENDED:
                self._end(restore, Cause.NODE_LOST)

    def repeat(self, restore: Restore) -> None:
        """Repeat the order of the current step (recovery)."""
        order = orders.of_restore(restore)
        if order is not None:
            self._context.order(restore.uid, restore.workload.node, order)
        elif restore.uid in self._finding:
            self._find(restore)
        self.arm(restore)

    def due(self, restore: Restore) -> None:
        """Handle an expired timer: the deadline, an order to repeat, or the record's retention."""
        now, step = self._context.now, restore.step
        if restore.finished_at is not None:
            if now >= (at := deaths.forget_at(self._book, restore, restore.finished_at, self._context.timing)):
                self._context.answered(restore.uid)
                self._book.forget(restore)
            else:
                self._context.deadlines.set(restore.uid, at)
            return
        if step in {RestoreStep.STARTING_COLD, RestoreStep.FAILING_WORKLOAD}:
            if now >= restore.deadline + self._context.timing.confirm:
                self._move(restore, Cause.UNCONFIRMED)
                return
        elif not unconfirmed(restore) and now >= restore.deadline:
            self._deadline(restore)
            return
        if self._context.due(restore.uid):
            order = orders.of_restore(restore)
            if order is not None:
                self._context.send_once(restore.workload.node, order)
            elif restore.uid in self._finding:
                self._context.send_once(restore.workload.node, orders.find(self._book, restore, self._context.now))
        self.arm(restore)

    # -- reconciliation

    def draw(self, restore: Restore) -> None:
        """Reconcile a changed restore: look for a snapshot if unblocked, and wake the restores that it blocked."""
        self.look(restore)
        if not holds_identity(restore):
            self.wake(restore)
        self.arm(self._book.restores[restore.uid])

    def look(self, restore: Restore) -> None:
        """Order a lookup in the store, unless the restore is blocked or a lookup is in flight."""
        if restore.step is not RestoreStep.WAITING:
            return
        problem = obstacles.forbidden(restore) or self._rivals.get(restore.uid)
        if problem and not obstacles.own(self._book, restore):
            self._refuse(restore, problem)
        elif self._blocked_by(restore) is not None:
            if obstacles.in_flight(self._book, restore):
                self._awaiting.add(restore.uid)
            elif restore.uid in self._awaiting:  # the saved pod may exist for a while yet
                self._awaiting.discard(restore.uid)
                self._unblocking.add(restore.uid)
                self.arm(self._put_off_after_wait(restore))
            if restore.requested_snapshot is not None:
                self._wants.add(restore.uid, restore.requested_snapshot)
            if restore.uid in self._finding:
                self._finding.discard(restore.uid)
                self._context.answered(restore.uid)
        elif restore.uid not in self._finding:
            self._finding.add(restore.uid)
            if restore.uid in self._awaiting | self._unblocking:  # time spent waiting does not count
                self._awaiting.discard(restore.uid)
                self._unblocking.discard(restore.uid)
                restore = self._put_off_after_wait(restore)
            self._find(restore)

    def wake(self, changed: Checkpoint | Restore) -> None:
        """Re-evaluate restores that may have waited for this checkpoint or restore."""
        identity = changed.identity
        freed = changed.snapshot
        for restore in self._book.restores_of(identity, changed.workload):
            self.look(self._book.restores[restore.uid])
        for uid in self._wants.of(identity, freed):
            restore_waiting = self._book.restores.get(uid)
            if restore_waiting is not None:
                self.look(restore_waiting)

    def arm(self, restore: Restore) -> None:
        """Set the restore's next timer."""
        self._context.deadlines.set(restore.uid, restore_deadlines.next_look(self._context, restore))

    # -- steps

    def _move(self, restore: Restore, cause: Cause, **changes: object) -> Restore | None:
        moved = self._book.move_restore(restore, cause, self._context.now, **changes)
        if moved is None:
            return None
        for waiting in (self._finding, self._awaiting, self._unblocking, self._promised):
            waiting.discard(moved.uid)
        self._context.answered(moved.uid)
        self._wants.drop(moved.uid)
        self._stale.pop(moved.uid, None)
        self._trouble.pop(moved.uid, None)
        self._staged.pop(moved.uid, None)
        self._rivals.pop(moved.uid, None)
        if cause is Cause.WORKLOAD_FAILED:
            return moved
        order = orders.of_restore(moved)
        if order is not None:
            self._context.order(moved.uid, moved.workload.node, order)
        messages.of_restore(self._context, moved)
        return moved

    def _end(self, restore: Restore, cause: Cause, ended: Ended | None = None) -> None:
        known = deaths.known(self._book, restore) if restore.step is RestoreStep.WAITING else restore.quick_failures
        counted = deaths.after(self._book, restore, known, ended, self._context.now)
        moved = self._move(restore, cause, finished_at=self._context.now, quick_failures=counted)
        if moved is not None and moved.set_aside - restore.set_aside:
            messages.of_set_aside(self._context, moved)

    def _find(self, restore: Restore) -> None:
        known = deaths.known(self._book, restore)
        if known != restore.quick_failures:
            restore = replace(restore, quick_failures=known)
            self._book.update(restore)
        if restore.requested_snapshot in restore.set_aside:
            self._refuse(restore, messages.set_aside(restore))
            return
        self._context.order(restore.uid, restore.workload.node, orders.find(self._book, restore, self._context.now))
        self.arm(restore)

    def _found(self, restore: Restore, found: SnapshotFound) -> None:
        if restore.step is not RestoreStep.WAITING or restore.uid not in self._finding:
            self._move(restore, Cause.SNAPSHOT_FOUND)
            return
        snapshot, trouble = found.snapshot, self._trouble.get(restore.uid)
        if (refused := found_snapshots.objection(self._book, restore, found, trouble)) is not None:
            self._refuse(restore, refused)
        elif snapshot is None:
            is_promised = restore.uid in self._promised
            why = obstacles.why_nothing(self._book, restore, is_promised=is_promised)
            if is_promised and why is not None:
                self._refuse(restore, why)
            else:
                self._move(restore, Cause.START_COLD, cold=True, failure=why)
        elif self._is_stale(restore, snapshot):
            return
        elif obstacles.claimed_by_other(self._book, restore, snapshot):
            self._wants.add(restore.uid, snapshot)
            self._finding.discard(restore.uid)
            self._context.answered(restore.uid)
            self.arm(restore)
        else:
            manifest = found_snapshots.manifest_of(self._book, restore, snapshot)
            self._move(restore, Cause.CHOSEN, snapshot=snapshot, manifest_digest=manifest)

    def _is_stale(self, restore: Restore, snapshot: SnapshotRef) -> bool:
        """Return whether to repeat the lookup because the answer predates a known commit."""
        if not found_snapshots.is_older_than_committed(self._book, restore, snapshot):
            return False
        self._stale[restore.uid] = self._stale.get(restore.uid, 0) + 1
        if self._stale[restore.uid] >= found_snapshots.STALE_ANSWERS:
            return False
        self._context.repeat_in(restore.uid, found_snapshots.STALE_SECONDS)
        self.arm(restore)
        return True

    def _stage_failed(self, restore: Restore, failed: StageFailed) -> None:
        if restore.step is RestoreStep.WAITING:
            if restore.uid in self._finding:  # repeated until the deadline: a snapshot may exist
                self._is_delayed(restore, failed.why)
                self._context.lost(restore.uid)
                self.arm(restore)
            return
        if restore.step is not RestoreStep.STAGING:
            self._move(restore, Cause.STAGE_FAILED)
            return
        tries = self._stale[restore.uid] = self._stale.get(restore.uid, 0) + 1
        pause = self._context.timing.pause_within(tries, restore.deadline - self._context.now)
        if failed.retryable and pause is not None:
            self._is_delayed(restore, failed.why)
            self._context.repeat_in(restore.uid, pause)
            self.arm(restore)
        elif failed.damaged and restore.requested_snapshot is None and restore.snapshot is not None:
            self._look_for_older(restore, restore.snapshot, failed.why)
        else:
            self._refuse(restore, f"{restore.snapshot} could not be fetched: {failed.why}")

    def _look_for_older(self, restore: Restore, damaged: SnapshotRef, why: str) -> None:
        if (refused := found_snapshots.too_many_damaged(restore, damaged, why)) is not None:
            self._refuse(restore, refused)
            return
        messages.of_damage(self._context, restore, damaged, why)
        self._move(restore, Cause.DAMAGED, snapshot=None, manifest_digest="", damaged=(*restore.damaged, damaged))
        self._trouble[restore.uid] = why

    def _progressed(self, restore: Restore, done_bytes: int) -> None:
        """Extend the deadline when new bytes arrive, up to a bound; re-fetched bytes do not extend it."""
        if restore.step is not RestoreStep.STAGING or done_bytes <= self._staged.get(restore.uid, 0):
            return
        self._staged[restore.uid] = done_bytes
        self._context.heard(restore.uid)
        self.arm(self._put_off(restore, restore_deadlines.after_progress(restore, self._context.now)))

    def _put_off_after_wait(self, restore: Restore) -> Restore:
        return self._put_off(restore, restore_deadlines.after_wait(restore, self._context.now))

    def _put_off(self, restore: Restore, deadline: float | None) -> Restore:
        if deadline is None:
            return restore
        later = replace(restore, deadline=deadline)
        self._book.update(later)
        return later

    def _deadline(self, restore: Restore) -> None:
        """Handle the deadline. Time spent waiting for checkpoints in flight, which have deadlines, does not count."""
        is_waiting = restore.step is RestoreStep.WAITING
        in_flight = obstacles.in_flight(self._book, restore) if is_waiting else []
        mine = obstacles.own(self._book, restore) if is_waiting else []
        if (deadline := restore_deadlines.after_checkpoints(self._context, restore, in_flight, mine)) is not None:
            self.arm(self._put_off(restore, deadline))
            return
        seconds = restore.deadline - restore.created_at
        why = f"not restored within {messages.seconds(seconds)}"
        if mine:  # evicted by its scheduler, but not deleted
            why += f": its eviction was released with {mine[0].snapshot}, and it is still there"
            self._move(restore, Cause.GIVE_UP, failure=why)
            return
        if is_waiting and (blocker := self._blocked_by(restore)) is not None:
            why += f", because {blocker}"
        elif restore.uid in self._trouble:
            why += f": {self._trouble[restore.uid]}"
        self._refuse(restore, why, keep_claim=restore.step is RestoreStep.RESTORING)

    def _refuse(self, restore: Restore, why: str, *, keep_claim: bool = False) -> None:
        """Start cold or fail with a reason, as the policy's `on_restore_failure` requires.

        `keep_claim`: the node may be restoring the snapshot nevertheless.
        """
        snapshot = restore.snapshot if keep_claim else None
        if restore.policy.on_restore_failure is OnRestoreFailure.COLD_START:
            self._move(restore, Cause.START_COLD, cold=True, failure=why, snapshot=snapshot)
        else:
            self._move(restore, Cause.GIVE_UP, failure=why, snapshot=snapshot)

    def _blocked_by(self, restore: Restore) -> str | None:
        return obstacles.blocked_by(self._book, restore, self._wants.get(restore.uid, restore.requested_snapshot))
