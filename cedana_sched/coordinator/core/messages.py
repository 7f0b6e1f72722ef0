"""User-facing Event messages for checkpoints, holds and restores."""

from __future__ import annotations

from cedana_sched.coordinator.core import obstacles
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import AfterCommit, Verdict, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, Restore, RestoreStep

_UNDONE = frozenset({CheckpointStep.ABORTING, CheckpointStep.FAILED})
_BECAME = {
    Verdict.COMMITTED: "saved",
    Verdict.EVICT: "let go without a snapshot",
    Verdict.KEEP_RUNNING: "not saved, to be kept running",
    Verdict.NOT_NEEDED: "ended or spared",
}


def seconds(amount: float) -> str:
    """Format a duration; below 1 s with fractions."""
    return f"{amount:.0f} s" if amount >= 1 else f"{amount:.2f} s"


def short(named: Identity | SnapshotRef) -> str:
    """Format as `id/index@generation`, the annotations' syntax: the namespace is that of the object of the Event."""
    identity = named.identity if isinstance(named, SnapshotRef) else named
    container = "" if identity.container == "main" else f"/{identity.container}"
    generation = f"@{named.generation}" if isinstance(named, SnapshotRef) else ""
    return f"{identity.id}/{identity.index}{container}{generation}"


def of_checkpoint(context: TurnContext, checkpoint: Checkpoint, cause: Cause) -> None:
    """Publish an Event for a checkpoint's step, if the step matters to the workload's owner."""
    kind, text, warning = "", "", False
    identity, name = checkpoint.identity, checkpoint.workload.name
    if cause is Cause.BEGIN:
        kind = "CheckpointStarted"
        again = f", attempt {checkpoint.attempt}" if checkpoint.attempt > 1 else ""
        why = f"{checkpoint.adapter} evicts it: " if checkpoint.after_commit is AfterCommit.STOP else ""
        text = f"Checkpoint {short(identity)} of {name} started: {why}{checkpoint.reason}{again}"
    elif checkpoint.step is CheckpointStep.COMMITTED and checkpoint.snapshot is not None:
        kind = "CheckpointCommitted"
        text = f"Checkpoint {short(checkpoint.snapshot)} of {name} committed: {_figures(checkpoint)}"
    elif cause is Cause.SPARED:
        kind = "EvictionCancelled"
        text = f"{name} is not evicted after all, and runs on; {_snapshot(checkpoint)} stays"
    elif cause in {Cause.CANCELLED, Cause.ENDED} and checkpoint.step in _UNDONE:
        kind = "CheckpointCancelled"
        text = f"Checkpoint {short(identity)} of {name} is not needed: {checkpoint.failure}"
    elif checkpoint.step in _UNDONE and cause is not Cause.ABORTED:
        kind, warning = "CheckpointFailed", True
        text = f"Checkpoint {short(identity)} of {name} failed: {checkpoint.failure}"
        if cause is Cause.UNCONFIRMED:
            text = f"Node {checkpoint.workload.node} has not confirmed that {name} runs on: {checkpoint.failure}"
        elif checkpoint.verdict is None:
            text += "; it is tried again"
    elif cause is Cause.UNCONFIRMED:
        kind, warning = "NodeNotResponding", True
        order = "kill" if checkpoint.stops else "thaw"
        text = f"Node {checkpoint.workload.node} has not confirmed the {order} of {name}"
    if kind:
        _publish(context, checkpoint, kind, text, warning=warning)


def of_work_left(context: TurnContext, checkpoint: Checkpoint, snapshot: SnapshotRef, left: SnapshotRef) -> None:
    """Publish that the new snapshot does not contain the work of the previously newest one."""
    text = (
        f"Checkpoint {short(snapshot)} does not continue {short(left)}, whose work nothing newer has: it is kept beside"
        " those of the policy, until somebody deletes it. To continue from it, delete the newer ones, or ask for it by"
        f" its name (of a pod: the annotation {names.RESTORE_FROM}: {short(left)})"
    )
    _publish(context, checkpoint, "SnapshotDiverged", text, warning=True)


def of_overdue(context: TurnContext, checkpoint: Checkpoint) -> None:
    """Publish that a released workload is killed because it was not deleted."""
    text = (
        f"{checkpoint.workload.name} was released and is not deleted after {seconds(context.timing.patience)}: it is"
        f" killed; {_snapshot(checkpoint)} stays"
    )
    _publish(context, checkpoint, "NotDeleted", text, warning=True)


def of_release(context: TurnContext, hold: PreemptionHold, *, deadline: bool) -> None:
    """Publish how a hold ended."""
    given = tuple(hold.verdicts.values())
    counts = [f"{n} {words}" for verdict, words in _BECAME.items() if (n := given.count(verdict))]
    why = ", ".join(counts) + ("; its deadline has passed" if deadline else "")
    is_unsaved = not {Verdict.EVICT, Verdict.KEEP_RUNNING}.isdisjoint(given)
    text = f"Eviction released after {context.now - hold.created_at:.1f} s: {why}"
    context.tell("EvictionReleased", text, signal_uid=hold.uid, warning=deadline or is_unsaved)


def of_restore(context: TurnContext, restore: Restore) -> None:
    """Publish an Event for a restore's step, if the step matters to the workload's owner."""
    kind, text, warning = "", "", False
    name, taken = restore.workload.name, context.now - restore.created_at
    snapshot = short(restore.snapshot) if restore.snapshot is not None else ""
    if restore.step is RestoreStep.STAGING:
        kind = "RestoreScheduled"
        text = f"Will resume {name} from {snapshot} on node {restore.workload.node}"
        if why := passed_over(restore):
            text, warning = f"{text}, because {why}", bool(restore.damaged)
        if (newer := _newer_than(context, restore)) is not None:
            text, warning = f"{text}: {short(newer)} is not in the store any more, or cannot be read there", True
    elif restore.step is RestoreStep.RUNNING and not restore.cold:
        kind, text = "Restored", f"Resumed {name} from {snapshot} in {taken:.1f} s"
    elif restore.step is RestoreStep.STARTING_COLD and restore.failure is not None:
        kind, text, warning = "ColdStart", f"Started {name} without checkpoint: {restore.failure}", True
    elif restore.step is RestoreStep.FAILING_WORKLOAD:
        kind, text, warning = "RestoreFailed", f"Did not start {name}, as its policy says: {restore.failure}", True
    elif restore.step is RestoreStep.FAILED and restore.finished_at is None:
        kind, text, warning = (
            "NodeNotResponding",
            f"Node {restore.workload.node} has not confirmed the start of {name}",
            True,
        )
    if kind:
        context.tell(kind, text, identity=restore.identity, workload=restore.workload, warning=warning)


def _newer_than(context: TurnContext, restore: Restore) -> SnapshotRef | None:
    """Return the newest committed snapshot if the node has found an older one."""
    if restore.requested_snapshot is not None or restore.snapshot is None:
        return None
    newest = max(obstacles.committed(context.book, restore), default=restore.snapshot)
    return newest if newest > restore.snapshot else None


def passed_over(restore: Restore) -> str:
    """Describe the snapshots that this restore skips, and why; empty if there are none."""
    why = [set_aside(restore)] if restore.set_aside else []
    if restore.damaged:
        why.append(f"{', '.join(short(ref) for ref in sorted(restore.damaged))} cannot be read whole")
    return " and ".join(why)


def set_aside(restore: Restore) -> str:
    """Describe the quarantined snapshots, and why."""
    refs = ", ".join(short(ref) for ref in sorted(restore.set_aside))
    policy = restore.policy
    times = "once" if policy.quick_failure_threshold == 1 else f"{policy.quick_failure_threshold} times"
    return f"{refs} failed within {seconds(policy.quick_failure_seconds)} of being continued, {times}"


def of_set_aside(context: TurnContext, restore: Restore) -> None:
    """Publish that a snapshot is quarantined because its program failed soon after the restore, and what follows."""
    last = "cold" if restore.policy.on_restore_failure is OnRestoreFailure.COLD_START else "not at all"
    text = (
        f"{set_aside(restore)}; it is not restored again: {restore.workload.name}'s successor is continued from an"
        f" older snapshot, and starts {last} if there is none"
    )
    context.tell("SnapshotQuarantined", text, identity=restore.identity, workload=restore.workload, warning=True)


def of_damage(context: TurnContext, restore: Restore, damaged: SnapshotRef, why: str) -> None:
    """Publish that a snapshot is damaged, and what follows."""
    text = f"{short(damaged)} cannot be read whole: {why}; an older snapshot is looked for"
    context.tell("RestoreDelayed", text, identity=restore.identity, workload=restore.workload, warning=True)


def of_delay(context: TurnContext, restore: Restore, why: str) -> None:
    """Publish that a restore is delayed."""
    left = seconds(max(restore.deadline - context.now, 0.0))
    text = f"{restore.workload.name} waits for its snapshot, and is tried again for {left}: {why}"
    context.tell("RestoreDelayed", text, identity=restore.identity, workload=restore.workload, warning=True)


def of_new_beginning(context: TurnContext, earlier: Restore, workload: WorkloadRef) -> None:
    """Publish that a workload restarts and loses its work since its last start, except what a snapshot holds."""
    was = f"it had been resumed from {short(earlier.snapshot)}" if earlier.snapshot is not None else "it had begun"
    text = f"{workload.name} begins again on node {workload.node}: {was}, and its containers are made anew"
    context.tell("PodRestarted", text, identity=earlier.identity, workload=workload, warning=True)


def _publish(context: TurnContext, checkpoint: Checkpoint, reason: str, text: str, *, warning: bool) -> None:
    context.tell(
        reason,
        text,
        identity=checkpoint.identity,
        workload=checkpoint.workload,
        signal_uid=checkpoint.signal_uid,
        warning=warning,
    )


def _snapshot(checkpoint: Checkpoint) -> str:
    return f"snapshot {short(checkpoint.snapshot)}" if checkpoint.snapshot is not None else "its snapshot"


def _figures(checkpoint: Checkpoint) -> str:
    parts = [size(checkpoint.transfer.read_bytes)]
    if checkpoint.frozen_at is not None and checkpoint.committed_at is not None:
        parts.append(f"frozen for {checkpoint.committed_at - checkpoint.frozen_at:.1f} s")
    if checkpoint.workload_started_at is not None and checkpoint.committed_at is not None:
        saved = max(checkpoint.committed_at - checkpoint.workload_started_at, 0.0)
        parts.append(f"{_span(saved)} of work saved")
    return ", ".join(parts)


def _span(amount: float) -> str:
    """Format a run time: `17 s`, `5 min`, `3h07m`."""
    if amount < 60:
        return f"{amount:.0f} s"
    if amount < 3600:
        return f"{amount / 60:.0f} min"
    return f"{int(amount // 3600)}h{int(amount % 3600 // 60):02d}m"


def size(amount: int) -> str:
    """Format bytes with a binary unit: `3.1 GiB`."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
