"""The order of each step: the same for the first send, a repetition, and recovery."""

from __future__ import annotations

from cedana_sched.coordinator.core.book import Book, unconfirmed
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.orders import (
    Abort,
    ApplyRetention,
    DiscardCancelled,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Kill,
    Order,
    RestoreSnapshot,
    Stage,
    StartCold,
    Thaw,
)
from cedana_sched.model.records import Checkpoint, CheckpointStep, Restore, RestoreStep


def of_checkpoint(checkpoint: Checkpoint, now: float, lineage: Lineage | None = None) -> Order | None:
    """Return the order that the current step waits on; `lineage` is that of the workload."""
    uid, workload, step = checkpoint.uid, checkpoint.workload, checkpoint.step
    silent = checkpoint.unconfirmed
    left = max(checkpoint.deadline - now, 0.0)
    if step is CheckpointStep.FREEZING:
        return Freeze(uid, workload, checkpoint.gang is not None, left)
    if step is CheckpointStep.DUMPING:
        compression, who = checkpoint.policy.compression, (checkpoint.reason, checkpoint.adapter)
        runs_on = not checkpoint.stops
        return Dump(uid, workload, checkpoint.identity, compression, *who, left, lineage, runs_on)
    if step in {CheckpointStep.KILLING, CheckpointStep.THAWING} or (step is CheckpointStep.READY and silent):
        return Kill(uid, workload) if checkpoint.stops else Thaw(uid, workload)
    if step is CheckpointStep.FAILED and checkpoint.cleanup_pending:
        return DiscardCancelled(uid, checkpoint.identity, workload.namespace_uid)
    if step is CheckpointStep.ABORTING or (step is CheckpointStep.FAILED and silent):
        return abort(checkpoint)
    return None


def end(checkpoint: Checkpoint) -> Kill:
    """Return the final kill of a frozen workload that was released but not deleted."""
    return Kill(checkpoint.uid, checkpoint.workload, insist=True)


def abort(checkpoint: Checkpoint) -> Abort:
    """Return the order that undoes the checkpoint, whatever its state on the node."""
    why = checkpoint.failure or "it was called off"
    return Abort(checkpoint.uid, checkpoint.workload, checkpoint.identity, why)


def record_of(order: Order) -> str:
    """Return the uid of the record that an order belongs to."""
    if isinstance(order, FindSnapshot | Stage | RestoreSnapshot | StartCold | FailWorkload):
        return order.restore_uid
    return order.checkpoint_uid


def retain(checkpoint: Checkpoint, spare: tuple[int, ...]) -> ApplyRetention:
    """Return the retention order that follows a successful checkpoint."""
    return ApplyRetention(checkpoint.uid, checkpoint.identity, checkpoint.policy.retention, spare)


def of_restore(restore: Restore) -> Order | None:
    """Return the order that the current step waits on; `WAITING` has rules of its own (see `restores`)."""
    uid, workload = restore.uid, restore.workload
    if restore.step is RestoreStep.STAGING and restore.snapshot is not None:
        return Stage(uid, workload, restore.snapshot, restore.manifest_digest)
    if restore.step is RestoreStep.RESTORING and restore.snapshot is not None:
        return RestoreSnapshot(uid, workload, restore.snapshot, restore.manifest_digest)
    if restore.step is RestoreStep.STARTING_COLD or (unconfirmed(restore) and restore.cold):
        return StartCold(uid, workload, restore.failure)
    if restore.step is RestoreStep.FAILING_WORKLOAD or unconfirmed(restore):
        return FailWorkload(uid, workload, restore.failure or "it could not be continued")
    return None


def find(book: Book, restore: Restore, now: float) -> FindSnapshot:
    """Return the order that looks up the restore's snapshot in the store."""
    identity = restore.requested_snapshot.identity if restore.requested_snapshot else restore.identity
    excluding = tuple(c.uid for c in book.of_identity(identity, restore.workload) if c.cancelled)
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
