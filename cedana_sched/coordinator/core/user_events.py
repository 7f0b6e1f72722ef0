"""User-facing Events of checkpoints, holds and restores."""

from __future__ import annotations

from collections.abc import Sequence

from cedana_sched.coordinator.core.instructions import PublishEvent, Severity
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import AfterCommit, Verdict, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, Restore, RestoreStep

_UNDONE = frozenset({CheckpointStep.ABORTING, CheckpointStep.FAILED})
_BECAME = {
    Verdict.COMMITTED: "saved",
    Verdict.EVICT: "evicted without a snapshot",
    Verdict.KEEP_RUNNING: "not saved, to be kept running",
    Verdict.NOT_NEEDED: "ended or spared",
}


def format_seconds(amount: float) -> str:
    """Format a duration; below 1 s with fractions."""
    return f"{amount:.0f} s" if amount >= 1 else f"{amount:.2f} s"


def format_short_name(named: Identity | SnapshotRef) -> str:
    """Format as `id/index@generation`, the annotations' syntax: the namespace is that of the object of the Event."""
    identity = named.identity if isinstance(named, SnapshotRef) else named
    container = "" if identity.container == "main" else f"/{identity.container}"
    generation = f"@{named.generation}" if isinstance(named, SnapshotRef) else ""
    return f"{identity.id}/{identity.index}{container}{generation}"


def checkpoint_event(checkpoint: Checkpoint, cause: Cause) -> PublishEvent | None:
    """Return the Event of a checkpoint's step; None if the step does not matter to the workload's owner."""
    identity, name, step = checkpoint.identity, checkpoint.workload.name, checkpoint.step
    if cause is Cause.BEGIN:
        if checkpoint.is_periodic:
            return None
        again = f", attempt {checkpoint.attempt}" if checkpoint.attempt > 1 else ""
        why = f"{checkpoint.adapter} evicts it: " if checkpoint.after_commit is AfterCommit.STOP else ""
        text = f"Checkpoint {format_short_name(identity)} of {name} started: {why}{checkpoint.reason}{again}"
        return _event_of_record(checkpoint, "CheckpointStarted", text)
    if step is CheckpointStep.COMMITTED and checkpoint.snapshot is not None:
        statistics = _format_checkpoint_statistics(checkpoint)
        text = f"Checkpoint {format_short_name(checkpoint.snapshot)} of {name} committed: {statistics}"
        return _event_of_record(checkpoint, "CheckpointCommitted", text)
    if cause is Cause.SPARED:
        text = f"{name} is not evicted after all, and runs on; {_format_snapshot(checkpoint)} stays"
        return _event_of_record(checkpoint, "EvictionCancelled", text)
    if step in _UNDONE and cause is not Cause.ABORTED:
        return _checkpoint_undone_event(checkpoint, cause)
    if cause is Cause.UNCONFIRMED:
        order = "kill" if checkpoint.is_stopped_after_commit else "thaw"
        text = f"Node {checkpoint.workload.node} has not confirmed the {order} of {name}"
        return _event_of_record(checkpoint, "NodeNotResponding", text, Severity.WARNING)
    return None


def _checkpoint_undone_event(checkpoint: Checkpoint, cause: Cause) -> PublishEvent:
    what = f"Checkpoint {format_short_name(checkpoint.identity)} of {checkpoint.workload.name}"
    if cause in {Cause.CANCELLED, Cause.ENDED}:
        return _event_of_record(checkpoint, "CheckpointCancelled", f"{what} is not needed: {checkpoint.failure}")
    text = f"{what} failed: {checkpoint.failure}"
    if cause is Cause.UNCONFIRMED:
        node, name = checkpoint.workload.node, checkpoint.workload.name
        text = f"Node {node} has not confirmed that {name} runs on: {checkpoint.failure}"
    elif checkpoint.verdict is None:
        text += "; it is tried again"
    return _event_of_record(checkpoint, "CheckpointFailed", text, Severity.WARNING)


def abandoned_work_event(checkpoint: Checkpoint, snapshot: SnapshotRef, left: SnapshotRef) -> PublishEvent:
    """Return the Event that the new snapshot does not contain the work of the previously newest one."""
    older = format_short_name(left)
    text = (
        f"Checkpoint {format_short_name(snapshot)} does not continue {older}, whose work nothing newer has: it is kept"
        " beside those of the policy, until it is deleted. To restore it, delete the newer ones, or select it by"
        f" its name (of a pod: the annotation {names.RESTORE_FROM}: {older})"
    )
    return _event_of_record(checkpoint, "SnapshotDiverged", text, Severity.WARNING)


def deletion_overdue_event(checkpoint: Checkpoint, patience: float) -> PublishEvent:
    """Return the Event that a released workload is killed because it was not deleted."""
    text = (
        f"{checkpoint.workload.name} was released and is not deleted after {format_seconds(patience)}: it is"
        f" killed; {_format_snapshot(checkpoint)} stays"
    )
    return _event_of_record(checkpoint, "NotDeleted", text, Severity.WARNING)


def eviction_held_event(hold: PreemptionHold, now: float) -> PublishEvent:
    """Return the Event that the adapter holds an eviction."""
    text = f"Eviction held for checkpoint, at most {max(hold.deadline - now, 0.0):.0f}s"
    return PublishEvent("EvictionHeld", text, signal_uid=hold.uid)


def eviction_released_event(hold: PreemptionHold, now: float, *, deadline: bool) -> PublishEvent:
    """Return the Event of how a hold ended."""
    given = tuple(hold.verdicts.values())
    counts = [f"{n} {words}" for verdict, words in _BECAME.items() if (n := given.count(verdict))]
    why = ", ".join(counts) + ("; its deadline has passed" if deadline else "")
    is_unsaved = not {Verdict.EVICT, Verdict.KEEP_RUNNING}.isdisjoint(given)
    severity = Severity.WARNING if deadline or is_unsaved else Severity.NORMAL
    text = f"Eviction released after {now - hold.created_at:.1f} s: {why}"
    return PublishEvent("EvictionReleased", text, severity, signal_uid=hold.uid)


def release_failed_event(signal_uid: str, why: str) -> PublishEvent:
    """Return the Event that the adapter could not release its scheduler."""
    text = f"The release could not be written, trying again: {why}"
    return PublishEvent("ReleaseFailed", text, Severity.WARNING, signal_uid=signal_uid)


def restore_event(restore: Restore, now: float, newest: SnapshotRef | None) -> PublishEvent | None:
    """Return the Event of a restore's step; None if the step does not matter to the workload's owner.

    `newest`: the newest committed snapshot.
    """
    name, node = restore.workload.name, restore.workload.node
    snapshot = format_short_name(restore.snapshot) if restore.snapshot is not None else ""
    if restore.step is RestoreStep.STAGING:
        return _snapshot_chosen_event(restore, f"Will resume {name} from {snapshot} on node {node}", newest)
    if restore.step is RestoreStep.RUNNING and not restore.cold:
        return _event_of_record(
            restore, "Restored", f"Resumed {name} from {snapshot} in {now - restore.created_at:.1f} s"
        )
    if restore.step is RestoreStep.STARTING_COLD and restore.failure is not None:
        return _event_of_record(
            restore, "ColdStart", f"Started {name} without checkpoint: {restore.failure}", Severity.WARNING
        )
    if restore.step is RestoreStep.FAILING_WORKLOAD:
        text = f"Did not start {name}, as its policy says: {restore.failure}"
        return _event_of_record(restore, "RestoreFailed", text, Severity.WARNING)
    if restore.step is RestoreStep.FAILED and restore.finished_at is None:
        text = f"Node {node} has not confirmed the start of {name}"
        return _event_of_record(restore, "NodeNotResponding", text, Severity.WARNING)
    return None


def _snapshot_chosen_event(restore: Restore, text: str, newest: SnapshotRef | None) -> PublishEvent:
    """Return the Event that a snapshot is claimed, and why not the newest one."""
    severity = Severity.WARNING if restore.damaged else Severity.NORMAL
    if why := describe_skipped_snapshots(restore):
        text = f"{text}, because {why}"
    chosen = restore.snapshot
    if restore.requested_snapshot is None and newest is not None and chosen is not None and newest > chosen:
        text = f"{text}: {format_short_name(newest)} is not in the store any more, or cannot be read there"
        severity = Severity.WARNING
    return _event_of_record(restore, "RestoreScheduled", text, severity)


def describe_skipped_snapshots(restore: Restore) -> str:
    """Describe the snapshots that this restore skips, and why; empty if there are none."""
    why = [describe_quarantined_snapshots(restore)] if restore.quarantined_snapshots else []
    if restore.damaged:
        why.append(f"{', '.join(format_short_name(ref) for ref in sorted(restore.damaged))} cannot be read whole")
    return " and ".join(why)


def describe_quarantined_snapshots(restore: Restore) -> str:
    """Describe the quarantined snapshots, and why."""
    refs = ", ".join(format_short_name(ref) for ref in sorted(restore.quarantined_snapshots))
    policy = restore.policy
    times = "once" if policy.quick_failure_threshold == 1 else f"{policy.quick_failure_threshold} times"
    return f"{refs} failed within {format_seconds(policy.quick_failure_seconds)} of being continued, {times}"


def snapshot_quarantined_event(restore: Restore) -> PublishEvent:
    """Return the Event that a snapshot is quarantined because its program failed soon after the restore."""
    last = "cold" if restore.policy.on_restore_failure is OnRestoreFailure.COLD_START else "not at all"
    text = (
        f"{describe_quarantined_snapshots(restore)}; it is not restored again: {restore.workload.name}'s successor"
        f" is continued from an older snapshot, and starts {last} if there is none"
    )
    return _event_of_record(restore, "SnapshotQuarantined", text, Severity.WARNING)


def snapshot_damaged_event(restore: Restore, damaged: SnapshotRef, why: str) -> PublishEvent:
    """Return the Event that a snapshot is damaged, and what follows."""
    text = f"{format_short_name(damaged)} cannot be read whole: {why}; an older snapshot is looked for"
    return _event_of_record(restore, "RestoreDelayed", text, Severity.WARNING)


def restore_delayed_event(restore: Restore, why: str, now: float) -> PublishEvent:
    """Return the Event that a restore is delayed."""
    left = format_seconds(max(restore.deadline - now, 0.0))
    text = f"{restore.workload.name} waits for its snapshot, and is tried again for {left}: {why}"
    return _event_of_record(restore, "RestoreDelayed", text, Severity.WARNING)


def files_changed_event(restore: Restore, notes: Sequence[str]) -> PublishEvent:
    """Return the Event that files outside the snapshot had changed since, and what was done about them."""
    text = f"Files of {restore.workload.name} have changed since its snapshot: {'; '.join(notes)}"
    return _event_of_record(restore, "FilesChanged", text, Severity.WARNING)


def predecessor_runs_event(restore: Restore, why: str) -> PublishEvent:
    """Return the Event that a restore waits for the end of an earlier workload of its identity."""
    text = f"{restore.workload.name} waits, so that nothing runs twice: {why}"
    return _event_of_record(restore, "RestoreDelayed", text, Severity.WARNING)


def workload_restarted_event(earlier: Restore, workload: WorkloadRef) -> PublishEvent:
    """Return the Event that a workload restarts and loses the work since its last start that no snapshot holds."""
    was = (
        f"it had been resumed from {format_short_name(earlier.snapshot)}"
        if earlier.snapshot is not None
        else "it had begun"
    )
    text = f"{workload.name} begins again on node {workload.node}: {was}, and its containers are made anew"
    return PublishEvent("PodRestarted", text, Severity.WARNING, earlier.identity, workload)


def _event_of_record(
    record: Checkpoint | Restore, kind: str, text: str, severity: Severity = Severity.NORMAL
) -> PublishEvent:
    signal_uid = record.signal_uid if isinstance(record, Checkpoint) else None
    return PublishEvent(kind, text, severity, record.identity, record.workload, signal_uid)


def _format_snapshot(checkpoint: Checkpoint) -> str:
    return f"snapshot {format_short_name(checkpoint.snapshot)}" if checkpoint.snapshot is not None else "its snapshot"


def _format_checkpoint_statistics(checkpoint: Checkpoint) -> str:
    parts = [format_bytes(checkpoint.transfer.read_bytes)]
    if checkpoint.frozen_at is not None and checkpoint.committed_at is not None:
        parts.append(f"frozen for {checkpoint.committed_at - checkpoint.frozen_at:.1f} s")
    if checkpoint.workload_started_at is not None and checkpoint.committed_at is not None:
        saved = max(checkpoint.committed_at - checkpoint.workload_started_at, 0.0)
        parts.append(f"{_format_run_time(saved)} of work saved")
    return ", ".join(parts)


def _format_run_time(amount: float) -> str:
    """Format a run time: `17 s`, `5 min`, `3h07m`."""
    if amount < 60:
        return f"{amount:.0f} s"
    if amount < 3600:
        return f"{amount / 60:.0f} min"
    return f"{int(amount // 3600)}h{int(amount % 3600 // 60):02d}m"


def format_bytes(amount: int) -> str:
    """Format bytes with a binary unit: `3.1 GiB`."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
