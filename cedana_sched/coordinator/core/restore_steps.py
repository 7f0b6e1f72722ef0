"""Single restore transitions: the order of each step, its Event, its timer, and the quick failures handed on.

Quick failures are counted per snapshot, kept in the restores and handed on from each restore to the next. The counts
survive coordinator, pods and the time between restores, and expire with the identity's last restore.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cedana_sched.adapter.contract import Ended, LastSaved
from cedana_sched.coordinator.core import restore_obstacles, user_events
from cedana_sched.coordinator.core.indexes import AwaitedClaims
from cedana_sched.coordinator.core.losses import inherited_loss, is_loss_of_latest
from cedana_sched.coordinator.core.namespace_shares import NamespaceShares
from cedana_sched.coordinator.core.record_registry import RecordRegistry, is_unconfirmed
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import FailWorkload, Order, RestoreSnapshot, Stage, StartCold
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS, OnNodeLoss, OnRestoreFailure, OnVolumeChange
from cedana_sched.model.preemption import AfterCommit, Verdict, WorkloadRef
from cedana_sched.model.records import Checkpoint, Restore, RestoreStep

MOST_REMEMBERED = 20_000
"""Restores that are retained longer than others for their failures or their loss, over all namespaces."""
MOST_FAILURES = 200
"""Quick failures kept per identity; older ones are dropped."""

IRREVERSIBLE_RESTORE_STEPS = frozenset({RestoreStep.STARTING_COLD, RestoreStep.FAILING_WORKLOAD})
"""Irreversible steps; these wait for the node's confirmation, also past the deadline."""
BEFORE_RESTORING = frozenset({RestoreStep.WAITING, RestoreStep.STAGING})
"""Steps from which another snapshot may still be chosen."""
_CONTINUED = frozenset({RestoreStep.RESTORING, RestoreStep.RUNNING})
_EVICTED = frozenset({Verdict.COMMITTED, Verdict.EVICT})


def order_of(restore: Restore) -> Order | None:
    """Return the order that the current step waits on; `WAITING` has rules of its own (see `snapshot_lookups`).

    The same for the first send, a repetition, and recovery.
    """
    uid, workload = restore.uid, restore.workload
    if restore.step is RestoreStep.STAGING and restore.snapshot is not None:
        return Stage(uid, workload, restore.snapshot, restore.manifest_digest)
    if restore.step is RestoreStep.RESTORING and restore.snapshot is not None:
        return RestoreSnapshot(
            uid,
            workload,
            restore.snapshot,
            restore.manifest_digest,
            ran_on=restore.ran_on,
            is_same_identity=restore.snapshot.identity == restore.identity,
        )
    if restore.step is RestoreStep.STARTING_COLD or (is_unconfirmed(restore) and restore.cold):
        return StartCold(uid, workload, restore.failure)
    if restore.step is RestoreStep.FAILING_WORKLOAD or is_unconfirmed(restore):
        return FailWorkload(uid, workload, restore.failure or "it could not be continued")
    return None


def inherited_failures(registry: RecordRegistry, restore: Restore) -> tuple[SnapshotRef, ...]:
    """Return the quick failures handed on by the identity's previous restore."""
    returns = registry.restores_of_identity(restore.identity, restore.workload)
    before = [one for one in returns if one.uid != restore.uid and one.finished_at]
    return max(before, key=lambda one: one.finished_at or 0.0).quick_failures if before else ()


@dataclass(slots=True)
class TransientState:
    """What is noted of a restore until its next transition; no record has it, and a new coordinator starts without."""

    awaits_report: bool = False
    """Recovered, and not reported since: whether it is refused, or follows a loss, is unknown until then."""
    is_finding: bool = False
    awaits_checkpoint: bool = False
    """A checkpoint in flight may still produce the snapshot."""
    awaits_end: bool = False
    """The awaited checkpoint is terminal, another obstacle remains."""
    is_wait_published: bool = False
    """The wait for the end of its predecessor."""
    is_promised: bool = False
    """Started on behalf of a snapshot that the registry may not contain."""
    ran_on: tuple[SnapshotRef, ...] = ()
    """Snapshots after which its program has executed, as reported."""
    saved: LastSaved | None = None
    """The workload that was saved last, as reported."""
    rival: str | None = None
    """Why the restore is refused once its workload's own checkpoint is terminal."""
    saved_rival: WorkloadRef | None = None
    """Runs under the identity, as reported, and is being saved to be stopped: it ends, unless that fails."""
    tries: int = 0
    """Stale answers of a lookup, or failures of a staging."""
    staged_bytes: int = 0
    """High-water mark."""
    trouble: str | None = None
    """Last order failure; reported if it persists until the deadline."""


class RestoreSteps:
    """Transitions, timers and deadlines of restores."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._registry = turn.registry
        self.transient: defaultdict[str, TransientState] = defaultdict(TransientState)
        self.wants = AwaitedClaims()
        self._remembered: NamespaceShares[None] = NamespaceShares(MOST_REMEMBERED)
        """Uids of the restores that are retained for the next one of their identity."""

    def take_transition(self, restore: Restore, cause: Cause, **changes: object) -> Restore | None:
        """Take a transition and send its order."""
        moved = self._registry.take_transition(restore, cause, self._turn.now, **changes)
        if moved is None:
            return None
        before = self.transient.pop(moved.uid, None)
        if before is not None and moved.step in BEFORE_RESTORING:
            self.transient[moved.uid].ran_on = before.ran_on
            self.transient[moved.uid].saved = before.saved
        self.wants.drop(moved.uid)
        self._turn.stop_repeating(moved.uid)
        if cause is Cause.WORKLOAD_FAILED:
            return moved
        order = order_of(moved)
        if order is not None:
            self._turn.send_order(moved.uid, moved.workload.node, order)
        is_chosen = moved.step is RestoreStep.STAGING
        newest = max(restore_obstacles.committed_snapshots(self._registry, moved), default=None) if is_chosen else None
        self._turn.publish(user_events.restore_event(moved, self._turn.now, newest))
        return moved

    def end(self, restore: Restore, cause: Cause, ended: Ended | None = None) -> None:
        """End a restore, which frees its claim; hand on its quick failures."""
        is_waiting = restore.step is RestoreStep.WAITING
        known = inherited_failures(self._registry, restore) if is_waiting else restore.quick_failures
        counted = self._failures_after(restore, known, ended)
        is_refused = restore.step is RestoreStep.FAILING_WORKLOAD and restore.snapshot is None
        may_have_run = restore.step not in BEFORE_RESTORING and not is_refused
        is_lost = may_have_run and (cause is Cause.NODE_LOST or (ended is not None and ended.lost_with_node))
        is_saved = self._registry.stopping_checkpoint_of(restore.workload.uid) is not None
        changes = {"quick_failures": counted, "lost_with_node": is_lost and not is_saved}
        if is_waiting and not restore_obstacles.checkpoints_awaited_by(self._registry, restore):
            changes["loss"] = self.inherited_loss(restore)
        moved = self.take_transition(restore, cause, finished_at=self._turn.now, **changes)
        if moved is not None and moved.quarantined_snapshots - restore.quarantined_snapshots:
            self._turn.publish(user_events.snapshot_quarantined_event(moved))

    def apply_failure_policy(self, restore: Restore, why: str, *, keep_claim: bool = False) -> None:
        """Start cold or fail with a reason, as the policy's `on_restore_failure` requires.

        `keep_claim`: the node may be restoring the snapshot nevertheless.
        """
        snapshot = restore.snapshot if keep_claim else None
        if restore.policy.on_restore_failure is OnRestoreFailure.COLD_START:
            self.take_transition(restore, Cause.START_COLD, cold=True, failure=why, snapshot=snapshot)
        else:
            self.take_transition(restore, Cause.GIVE_UP, failure=why, snapshot=snapshot)

    def inherited_loss(self, restore: Restore) -> str | None:
        """Return the loss that the policy's `on_node_loss` is about; None if there is none."""
        return inherited_loss(self._registry, restore, self.transient[restore.uid].saved)

    def apply_change_policy(self, restore: Restore, why: str) -> None:
        """Start cold or fail because files ran ahead of the snapshot, as the policy's `on_volume_change` requires."""
        if restore.policy.on_volume_change is OnVolumeChange.COLD_START:
            self.take_transition(restore, Cause.START_COLD, cold=True, failure=why, snapshot=None)
        elif restore.policy.on_volume_change is OnVolumeChange.FAIL:
            self.take_transition(restore, Cause.GIVE_UP, failure=why, snapshot=None)
        else:
            self.apply_failure_policy(restore, why)

    def apply_loss_policy(self, restore: Restore, loss: str) -> None:
        """Start cold or fail after the loss of a node, as the policy's `on_node_loss` requires."""
        why = f"{loss}, and the policy has onNodeLoss: {restore.policy.on_node_loss}"
        if restore.policy.on_node_loss is OnNodeLoss.COLD_START:
            self.take_transition(restore, Cause.START_COLD, cold=True, failure=why)
        else:
            self.take_transition(restore, Cause.GIVE_UP, failure=why)

    # -- timers

    def set_next_timer(self, restore: Restore) -> None:
        """Set the next timer: deadline, order repetition or retention; none if the restore waits for nothing."""
        at: float | None = restore.deadline
        if restore.step is RestoreStep.RUNNING or is_unconfirmed(restore):
            at = None
        elif restore.finished_at is not None:
            at = restore.finished_at + self._turn.timing.remember  # a later restore may take over its failures by then
        elif restore.step in IRREVERSIBLE_RESTORE_STEPS:
            at = restore.deadline + self._turn.timing.confirm
        repeat = self._turn.next_repetition_at(restore.uid)
        if repeat is not None:
            at = repeat if at is None else min(at, repeat)
        self._turn.timers.set(restore.uid, at)

    def drop_if_expired(self, restore: Restore, finished_at: float) -> None:
        """Drop an expired record; it expires late enough for a later restore to know of its failures and its loss."""
        timing = self._turn.timing
        is_last = self._registry.restores_of_identity(restore.identity, restore.workload)[-1].uid == restore.uid
        matters_to_next = (is_last and bool(restore.quick_failures)) or is_loss_of_latest(self._registry, restore)
        at = finished_at + (timing.remember_deaths if matters_to_next else timing.remember)
        if self._turn.now < at:
            self._turn.timers.set(restore.uid, at)
            if matters_to_next and self._turn.now >= finished_at + timing.remember:
                self._remember_longer(restore)
            return
        self._drop(restore)

    def _remember_longer(self, restore: Restore) -> None:
        """Retain a record longer than others, as long as its namespace has a share for it."""
        displaced = self._remembered.put(restore.workload.namespace, restore.uid, None)
        if displaced is not None and (other := self._registry.restores.get(displaced.uid)) is not None:
            self._drop(other)

    def _drop(self, restore: Restore) -> None:
        self._remembered.drop(restore.workload.namespace, restore.uid)
        self._turn.timers.set(restore.uid, None)
        self._turn.stop_repeating(restore.uid)
        self.transient.pop(restore.uid, None)
        self._registry.forget(restore)

    # -- what extends the deadline

    def extend_for_progress(self, restore: Restore) -> None:
        """Extend the deadline for staged bytes, unless the current one is far off or at its bound."""
        is_near = restore.deadline - self._turn.now < restore.policy.restore_deadline_seconds / 2
        self.set_next_timer(self.extend_for_wait(restore) if is_near else restore)  # not one write per report

    def extend_for_wait(self, restore: Restore) -> Restore:
        """Extend the deadline after a wait, which does not count."""
        policy, longest = restore.policy, restore.created_at + LONGEST_RECORD_SECONDS
        deadline = min(self._turn.now + policy.restore_deadline_seconds, longest)
        return self._extend(restore, deadline) if deadline > restore.deadline else restore

    def extend_for_checkpoints(
        self, restore: Restore, in_flight: Sequence[Checkpoint], own: Sequence[Checkpoint]
    ) -> bool:
        """Extend the deadline for checkpoints in flight, which end by their own deadlines; False if there are none.

        `own`: checkpoints of the restore's workload, some possibly terminal.
        """
        waited_for = [*in_flight, *(one for one in own if not one.is_terminal or one.kill_pending or one.unconfirmed)]
        if not waited_for:
            return False
        settled = max(one.deadline for one in waited_for) + self._turn.timing.confirm
        self.set_next_timer(
            self._extend(restore, max(settled, self._turn.now) + restore.policy.restore_deadline_seconds)
        )
        return True

    def _extend(self, restore: Restore, deadline: float) -> Restore:
        later = replace(restore, deadline=deadline)
        self._registry.update(later)
        return later

    # -- quick failures

    def _failures_after(
        self, restore: Restore, failures: tuple[SnapshotRef, ...], ended: Ended | None
    ) -> tuple[SnapshotRef, ...]:
        """Return the quick failures that this restore hands on after its workload ended.

        Eviction, success and node loss are no evidence; a long run clears the snapshot's failures.
        """
        ref = restore.snapshot
        if ref is None or restore.cold or restore.step not in _CONTINUED:
            return failures
        lived = self._turn.now - restore.running_at if restore.running_at is not None else 0.0
        if ended is not None and ended.ran_seconds is not None:
            lived = ended.ran_seconds
        if lived >= restore.policy.quick_failure_seconds:
            return tuple(one for one in failures if one != ref)
        if ended is None or not ended.failed or self._is_evicted(restore):
            return failures
        return (*failures, ref)[-MOST_FAILURES:]

    def _is_evicted(self, restore: Restore) -> bool:
        checkpoints = self._registry.checkpoints_of_workload(restore.workload.uid)
        return any(
            one.after_commit is AfterCommit.STOP and (not one.is_terminal or one.verdict in _EVICTED)
            for one in checkpoints
        )
