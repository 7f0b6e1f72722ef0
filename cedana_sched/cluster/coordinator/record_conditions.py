"""Status conditions: type, status, transition time, and a message that describes what is awaited."""

from __future__ import annotations

from cedana_sched.model.objects.base import Condition, utc_datetime_of
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Restore,
    RestoreStep,
)
from cedana_sched.model.texts import truncate_text

_AWAITS = {
    CheckpointStep.WAITING: "waits until another checkpoint or restore of the pod has ended",
    CheckpointStep.FREEZING: "waits until the node has frozen the pod",
    CheckpointStep.FROZEN: "frozen; waits for the rest of its gang",
    CheckpointStep.DUMPING: "its state is streamed to the store",
    CheckpointStep.COMMITTED: "committed; waits for the rest of its gang",
    CheckpointStep.KILLING: "committed; the node ends the pod with its eviction",
    CheckpointStep.THAWING: "committed; waits until the node lets the pod run on",
    CheckpointStep.ABORTING: "waits until the node has undone it and lets the pod run on",
    CheckpointStep.READY: "can be restored",
}
_COMES_BACK = {
    RestoreStep.WAITING: "waits for its snapshot, or for another pod that still runs as it",
    RestoreStep.STAGING: "its snapshot is fetched and verified on the node",
    RestoreStep.RESTORING: "the node continues the processes",
    RestoreStep.STARTING_COLD: "the node starts it from the beginning",
    RestoreStep.FAILING_WORKLOAD: "it cannot be continued, and its policy forbids a cold start",
    RestoreStep.RUNNING: "runs",
    RestoreStep.FAILED: "was not restored",
    RestoreStep.ENDED: "has ended",
}


def checkpoint_conditions(record: Checkpoint) -> tuple[Condition, ...]:
    """Return `Frozen`, `Committed` and `Ready`."""
    is_over = record.is_terminal
    waiting = record.failure or _AWAITS.get(record.step, "")
    why = "Failed" if is_over else "InProgress"
    return (
        _build_condition("Frozen", record.frozen_at, record.created_at, "Frozen", why, waiting),
        _build_condition("Committed", record.committed_at, record.created_at, "Committed", why, waiting),
        _build_condition(
            "Ready",
            record.finished_at if record.step is CheckpointStep.READY else None,
            record.finished_at or record.created_at,
            "Ready",
            str(record.step),
            waiting,
        ),
    )


def hold_conditions(record: PreemptionHold) -> tuple[Condition, ...]:
    """Return `Released`."""
    waiting = {
        HoldStep.HOLDING: f"waits for {len(record.checkpoints)} checkpoints",
        HoldStep.RELEASING: "waits until the release has reached the scheduler",
        HoldStep.RELEASED: "the scheduler proceeds",
    }[record.step]
    return (_build_condition("Released", record.released_at, record.created_at, "Released", str(record.step), waiting),)


def restore_conditions(record: Restore) -> tuple[Condition, ...]:
    """Return `Running`."""
    waiting = _COMES_BACK[record.step] + (f": {record.failure}" if record.failure else "")
    runs = record.running_at if record.step is RestoreStep.RUNNING else None
    reason = "ColdStart" if record.cold else "Restored"
    since = record.finished_at or record.created_at
    return (_build_condition("Running", runs, since, reason, str(record.step), waiting),)


def _build_condition(
    kind: str, true_since: float | None, else_since: float, reason: str, other: str, text: str
) -> Condition:
    return Condition(
        type=kind,
        status="False" if true_since is None else "True",
        reason=other if true_since is None else reason,
        message=truncate_text(text),
        last_transition_time=utc_datetime_of(else_since if true_since is None else true_since),
    )
