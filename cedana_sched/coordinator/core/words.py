"""The sentences that people read: Events of a checkpoint, a hold, a restore."""

from __future__ import annotations

from cedana_sched.coordinator.core.desk import Desk
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.model.preemption import After, Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, Restore, RestoreStep, Transfer

_UNDONE = frozenset({CheckpointStep.ABORTING, CheckpointStep.FAILED})


def seconds(amount: float) -> str:
    """A duration, short ones with their fractions."""
    return f"{amount:.0f} s" if amount >= 1 else f"{amount:.2f} s"


def of_checkpoint(desk: Desk, checkpoint: Checkpoint, cause: Cause) -> None:
    """Tell what a checkpoint's step means to its owner, if it means anything to him."""
    kind, text, warning = "", "", False
    identity = checkpoint.identity
    if cause is Cause.BEGIN:
        kind = "CheckpointStarted"
        again = f", attempt {checkpoint.attempt}" if checkpoint.attempt > 1 else ""
        text = f"Checkpoint {identity} started: {checkpoint.reason}{again}"
    elif checkpoint.step is CheckpointStep.COMMITTED:
        kind, text = "CheckpointCommitted", f"Checkpoint {checkpoint.snapshot} committed: {_figures(checkpoint)}"
    elif cause in {Cause.CANCELLED, Cause.ENDED} and checkpoint.step in _UNDONE:
        kind, text = "CheckpointCancelled", f"Checkpoint {identity} is not needed: {checkpoint.failure}"
    elif checkpoint.step in _UNDONE and cause is not Cause.ABORTED:
        kind, warning = "CheckpointFailed", True
        text = f"Checkpoint {identity} failed: {checkpoint.failure}"
        if cause is Cause.UNCONFIRMED:
            text = f"Node {checkpoint.workload.node} has not confirmed that {identity} runs on: {checkpoint.failure}"
        elif checkpoint.verdict is None:
            text += "; it is tried again"
    elif cause is Cause.UNCONFIRMED:
        kind, warning = "NodeSilent", True
        order = "kill" if checkpoint.after is After.STOP else "thaw"
        text = f"Node {checkpoint.workload.node} has not confirmed the {order} of {identity}"
    if kind:
        desk.tell(
            kind,
            text,
            identity=identity,
            workload=checkpoint.workload,
            signal_uid=checkpoint.signal_uid,
            warning=warning,
        )


def of_release(desk: Desk, hold: PreemptionHold, *, deadline: bool) -> None:
    """Tell how a hold ended."""
    counts = [f"{n} {v}" for v in Verdict if (n := sum(1 for verdict in hold.verdicts.values() if verdict is v))]
    why = ", ".join(counts) + (", deadline" if deadline else "")
    text = f"Eviction released after {desk.now - hold.created_at:.1f}s: {why}"
    desk.tell("EvictionReleased", text, signal_uid=hold.uid, warning=deadline)


def of_restore(desk: Desk, restore: Restore) -> None:
    """Tell what a restore's step means to its owner, if it means anything to him."""
    kind, text, warning = "", "", False
    seconds = desk.now - restore.created_at
    if restore.step is RestoreStep.STAGING:
        kind = "RestoreScheduled"
        text = f"Will resume from {restore.snapshot} on node {restore.workload.node}"
    elif restore.step is RestoreStep.RUNNING and not restore.cold:
        kind, text = "Restored", f"Resumed from {restore.snapshot} in {seconds:.1f}s"
    elif restore.step is RestoreStep.STARTING_COLD and restore.failure is not None:
        kind, text, warning = "ColdStart", f"Started without checkpoint: {restore.failure}", True
    elif restore.step is RestoreStep.GIVING_UP:
        kind, text, warning = "RestoreFailed", f"Not started, as its policy says: {restore.failure}", True
    elif restore.step is RestoreStep.FAILED and restore.finished_at is None:
        kind, text, warning = "NodeSilent", f"Node {restore.workload.node} has not confirmed the start", True
    if kind:
        desk.tell(kind, text, identity=restore.identity, workload=restore.workload, warning=warning)


def _figures(checkpoint: Checkpoint) -> str:
    parts = [size(checkpoint.transfer)]
    if checkpoint.frozen_at is not None and checkpoint.committed_at is not None:
        parts.append(f"frozen for {checkpoint.committed_at - checkpoint.frozen_at:.1f}s")
    if checkpoint.workload_started_at is not None and checkpoint.committed_at is not None:
        saved = max(checkpoint.committed_at - checkpoint.workload_started_at, 0.0)
        parts.append(f"{int(saved // 3600)}h{int(saved % 3600 // 60):02d}m of work saved")
    return ", ".join(parts)


def size(transfer: Transfer) -> str:
    """What was read, as a person writes it: `3.1 GiB`."""
    value = float(transfer.read_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
