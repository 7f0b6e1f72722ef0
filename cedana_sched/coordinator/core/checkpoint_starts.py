"""When a waiting set of checkpoints begins: all its members at once, as soon as none of them is blocked.

No process is frozen by two checkpoints, and none while its workload starts. The checkpoint of a workload that another
one has stopped joins that one instead.
"""

from __future__ import annotations

from cedana_sched.coordinator.core import restore_obstacles
from cedana_sched.coordinator.core.checkpoint_steps import CheckpointSteps
from cedana_sched.coordinator.core.record_registry import is_unconfirmed
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import TERMINAL_RESTORE_STEPS, Checkpoint, CheckpointStep, Restore, RestoreStep


def is_active(checkpoint: Checkpoint) -> bool:
    """Return whether an order is outstanding at the agent, which may still thaw the workload."""
    is_silent = checkpoint.unconfirmed and not checkpoint.cleanup_pending
    return is_silent or (checkpoint.step is not CheckpointStep.WAITING and not checkpoint.is_terminal)


class CheckpointStarts:
    """The starts of all checkpoints of one core."""

    def __init__(self, turn: Turn, steps: CheckpointSteps) -> None:
        self._turn = turn
        self._registry = turn.registry
        self._steps = steps
        self._refused: dict[str, str] = {}
        """Uids of checkpoints that fail in the turn that created them, and why."""

    def refuse(self, uid: str, why: str) -> None:
        """Let a checkpoint fail as soon as it could begin."""
        self._refused[uid] = why

    def try_to_begin(self, waiting: Checkpoint) -> None:
        """Order the freeze of the whole set, unless any member is blocked."""
        if self._turn.now >= waiting.deadline:
            return  # the deadline is handled in this turn
        whole = self._registry.checkpoint_set_of(waiting)
        if self._is_kept_back(waiting.uid) or (whole.obstacle is not None and self._is_kept_back(whole.obstacle)):
            return
        for uid in whole.uids_from_obstacle():
            if self._is_kept_back(uid):
                whole.obstacle = uid  # the next scan starts at this member
                return
        members = self._registry.members_of_set(waiting)
        waiting_members = [member for member in members if member.step is CheckpointStep.WAITING]
        if waiting_members and len(waiting_members) < len(members):
            taken = next(member for member in members if member.is_terminal)
            self._steps.fail_other_members(taken, Cause.SET_FAILED, "a member of its gang was preempted without it")
            return
        for member in waiting_members:
            self._steps.take_transition(member, Cause.BEGIN)

    def start_waiting(self, workload_uid: str) -> None:
        """Start checkpoints that waited for another checkpoint, or the restore, of this workload."""
        for checkpoint in self._registry.current_versions_of(self._registry.checkpoints_of_workload(workload_uid)):
            if checkpoint.step is CheckpointStep.WAITING:
                self.try_to_begin(checkpoint)

    def _is_kept_back(self, uid: str) -> bool:
        """Return whether this member cannot start now; a workload stopped by another checkpoint joins that one."""
        member = self._registry.checkpoints.get(uid)
        if member is None or member.step is not CheckpointStep.WAITING:
            return False
        if member.not_before is not None and self._turn.now < member.not_before:
            return True
        restore = self._registry.latest_restore_of_workload(member.workload.uid)
        if stopped := self._registry.stopping_checkpoint_of(member.workload.uid):
            if member.is_periodic:  # its readers would rely on the stop, which may still be cancelled
                self._steps.fail(member, Cause.CANCELLED, f"it is saved as {stopped.snapshot}, and stopped")
                return True
            self._join(member, stopped)
            return False
        if restore is not None and restore.step in TERMINAL_RESTORE_STEPS and not is_unconfirmed(restore):
            self._steps.fail_for_ended_workload(member, "it runs no more")
            return True
        if why := self._refused.pop(uid, None) or restore_obstacles.rival_reason(self._registry, member):
            self._steps.fail(member, Cause.RIVAL, why)
            return True
        return self._is_workload_starting(restore) or any(
            map(is_active, self._registry.checkpoints_of_workload(member.workload.uid))
        )

    def _is_workload_starting(self, restore: Restore | None) -> bool:
        """Return whether the node's answer about the start is pending. An unconfirmed workload is frozen if it runs."""
        if restore is None or restore.step is RestoreStep.RUNNING:
            return False
        return not is_unconfirmed(restore) or self._turn.next_repetition_at(restore.uid) is not None

    def _join(self, member: Checkpoint, other: Checkpoint) -> None:
        self._steps.take_transition(
            member,
            Cause.JOIN,
            snapshot=other.snapshot,
            manifest_digest=other.manifest_digest,
            transfer=other.transfer,
            committed_at=other.committed_at,
            verdict=Verdict.COMMITTED,
        )
