"""Obstacles between a restore and its snapshot: read-only queries on the registry.

A node's answer may be stale, and the snapshot that it found damaged. A damaged snapshot is skipped for an older one. An
answer older than the newest known commit is treated as stale, and accepted only when it repeats.
"""

from __future__ import annotations

from cedana_sched.coordinator.core import user_events
from cedana_sched.coordinator.core.record_registry import RecordRegistry, claimed_snapshot, holds_identity
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import SnapshotFound
from cedana_sched.model.preemption import AfterCommit, Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep, Restore, RestoreStep

STALE_ANSWERS = 3
"""Number of answers older than the newest commit after which the older generation is accepted."""
STALE_SECONDS = 1.0
"""Seconds until the lookup is repeated after a stale answer."""
MOST_DAMAGED = 16
"""Limit of damaged snapshots that are skipped for older ones; a node could report damage without end."""


def sought_identity(restore: Restore) -> Identity:
    """Return the identity whose snapshot the restore needs: a user may request another one's."""
    return restore.requested_snapshot.identity if restore.requested_snapshot else restore.identity


def checkpoints_awaited_by(registry: RecordRegistry, restore: Restore) -> list[Checkpoint]:
    """Return checkpoints of other workloads that may still produce this restore's snapshot."""
    return [
        checkpoint
        for checkpoint in registry.checkpoints_of_identity(sought_identity(restore), restore.workload)
        if not checkpoint.is_terminal and checkpoint.workload.uid != restore.workload.uid
    ]


def checkpoints_of_restarted_workload(registry: RecordRegistry, restore: Restore) -> list[Checkpoint]:
    """Return checkpoints of a restarted workload: those in flight, and one that stopped it permanently."""
    if not restore.incarnation:
        return []
    under_way = (
        one
        for one in registry.checkpoints_of_workload(restore.workload.uid)
        if one.step is not CheckpointStep.WAITING and not one.is_terminal
    )
    stopped = registry.stopping_checkpoint_of(restore.workload.uid)
    return [*under_way, *([stopped] if stopped is not None else [])]


def blocked_by(registry: RecordRegistry, restore: Restore, wanted: SnapshotRef | None) -> str | None:
    """Describe what blocks a waiting restore; None if nothing does.

    `wanted`: the snapshot that it needs, requested by a user or found in the store.
    """
    if flying := checkpoints_awaited_by(registry, restore):
        return f"a checkpoint of {flying[0].identity} is in flight"
    if restore.predecessor is not None:
        return restore.predecessor
    if mine := checkpoints_of_restarted_workload(registry, restore):
        return f"it is about to be evicted, with {mine[0].snapshot or 'a checkpoint'} of its own"
    is_earlier = True  # of two waiting restores, the later one waits for the earlier one
    for other in registry.restores_of_identity(restore.identity, restore.workload):
        if other.uid == restore.uid:
            is_earlier = False
        elif holds_identity(other) and (is_earlier or other.step is not RestoreStep.WAITING):
            return f"{other.workload.name} still runs as {restore.identity}"
    if wanted is not None and claimed_by_other(registry, restore, wanted):
        return f"{wanted} is claimed by another workload"
    return None


def rival_reason(registry: RecordRegistry, checkpoint: Checkpoint) -> str | None:
    """Describe why a checkpoint must never start: two workloads of its identity run, or have run, at the same time.

    Where the order of starts is known, the first may be saved. Of workloads reported in one signal none may: the
    snapshot's origin would be ambiguous.
    """
    own = registry.latest_restore_of_workload(checkpoint.workload.uid)
    for restore in registry.restores_of_identity(checkpoint.identity, checkpoint.workload):
        if restore.workload.uid != checkpoint.workload.uid and restore.step is RestoreStep.RUNNING:
            return format_rivalry_refusal(checkpoint.identity, restore.workload.name)
    for other in registry.checkpoints_of_identity(checkpoint.identity, checkpoint.workload):
        if other.workload.uid == checkpoint.workload.uid or other.verdict is Verdict.NOT_NEEDED:
            continue
        at_once = other.signal_uid == checkpoint.signal_uid
        is_saved = not other.is_terminal and other.step is not CheckpointStep.WAITING
        if at_once or is_saved or (own is None and _was_running_alongside(checkpoint, other)):
            return format_rivalry_refusal(checkpoint.identity, other.workload.name)
    return None


def _was_running_alongside(checkpoint: Checkpoint, other: Checkpoint) -> bool:
    """Return whether it ran when the other one was saved. One with a restore has waited for the other to end."""
    started, saved = checkpoint.workload_started_at, other.committed_at
    return other.is_stopped_after_commit and started is not None and saved is not None and started < saved


def is_being_stopped(registry: RecordRegistry, workload_uid: str) -> bool:
    """Return whether the workload has ended, or ends with a checkpoint: one is in flight, or has stopped it."""
    return any(
        one.workload_gone or (one.step is not CheckpointStep.FAILED and one.is_stopped_after_commit)
        for one in registry.checkpoints_of_workload(workload_uid)
    )


def format_rivalry_refusal(identity: Identity, name: str) -> str:
    """Format the refusal of two workloads with one identity."""
    return f"{identity.id}/{identity.index} is already run by {name}; give each of them an id of its own"


def committed_snapshots(registry: RecordRegistry, restore: Restore) -> list[SnapshotRef]:
    """Return the identity's committed snapshots, from the registry and the start report, without skipped ones."""
    known = registry.checkpoints_of_identity(restore.identity, restore.workload)
    found = [restore.newest_snapshot, *(c.snapshot for c in known if c.step is CheckpointStep.READY)]
    return [ref for ref in found if ref is not None and ref not in restore.passed_over]


def lost_snapshot_reason(registry: RecordRegistry, restore: Restore) -> str | None:
    """Describe a committed snapshot that is missing from the store; None if none is known."""
    if known := committed_snapshots(registry, restore):
        return f"{max(known)} is not in the store any more"
    returns = registry.restores_of_identity(restore.identity, restore.workload)
    mine = (one for one in returns if one.workload.uid == restore.workload.uid)
    if continued := [one.snapshot for one in mine if one.snapshot is not None]:
        return f"{max(continued)}, from which it was continued before, is not in the store any more"
    return None


def never_committed_reason(registry: RecordRegistry, restore: Restore, *, is_promised: bool) -> str | None:
    """Describe why an expected snapshot was never committed; None for a plain first start.

    `is_promised`: the start names a snapshot, possibly taken in another cluster.
    """
    for checkpoint in reversed(registry.checkpoints_of_identity(restore.identity, restore.workload)):
        if checkpoint.verdict is Verdict.EVICT and checkpoint.after_commit is AfterCommit.STOP:
            return f"there is no snapshot, because the checkpoint before failed: {checkpoint.failure}"
    if is_promised:
        return "it was started to restore a snapshot, and the store has none of this namespace"
    return None


def claimed_by_other(registry: RecordRegistry, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Return whether another restore claims this snapshot."""
    naming = registry.restores_naming(snapshot.identity, restore.workload)
    return any(claimed_snapshot(other) == snapshot for other in naming if other.uid != restore.uid)


def request_refusal(restore: Restore) -> str | None:
    """Describe why this workload can never use the requested snapshot."""
    wanted = restore.requested_snapshot
    if wanted is None:
        return None
    if wanted.identity.namespace != restore.identity.namespace:
        return f"{wanted} belongs to another namespace"
    if wanted.identity.index != restore.identity.index:
        return f"{wanted} belongs to replica {wanted.identity.index}, this is replica {restore.identity.index}"
    return None


def found_snapshot_refusal(
    registry: RecordRegistry, restore: Restore, found: SnapshotFound, trouble: str | None
) -> str | None:
    """Return why the restore is refused after this answer; None if it is not, or if there is no snapshot.

    `trouble`: the failure of its last order.
    """
    snapshot = found.snapshot
    if found.problem is not None:
        return found.problem
    if restore.requested_snapshot is not None and snapshot is None:
        return f"the requested {restore.requested_snapshot} is not in the store"
    if restore.passed_over and (snapshot is None or snapshot in restore.passed_over):
        more = f": {trouble}" if trouble else ""
        return f"{user_events.describe_skipped_snapshots(restore)}, and there is no older one{more}"
    if snapshot is None:
        return lost_snapshot_reason(registry, restore)
    if snapshot.identity != sought_identity(restore):
        return f"the node found {snapshot}, which is another identity's"
    if _is_newer_than_damaged(registry, restore, snapshot):
        return f"the node found {snapshot}, and was to find one that is older than {min(restore.damaged)}"
    return None


def too_many_damaged_refusal(restore: Restore, damaged: SnapshotRef, why: str) -> str | None:
    """Return the refusal once the limit of skipped snapshots is reached; None below it."""
    if len(restore.damaged) < MOST_DAMAGED:
        return None
    return f"{damaged} cannot be read whole, nor can {MOST_DAMAGED} newer ones: {why}"


def is_older_than_committed(registry: RecordRegistry, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Return whether the snapshot is older than a recorded commit, so that the answer is stale."""
    if restore.requested_snapshot is not None:
        return False
    newest = max((ref.generation for ref in committed_snapshots(registry, restore)), default=0)
    return snapshot.generation < newest


def manifest_digest_of(registry: RecordRegistry, restore: Restore, snapshot: SnapshotRef) -> str:
    """Return the digest of the snapshot's manifest; empty if no checkpoint has it."""
    known = registry.checkpoints_of_identity(snapshot.identity, restore.workload)
    made = (one for one in known if one.snapshot == snapshot)
    return next((one.manifest_digest for one in made if one.manifest_digest), "")


def _is_newer_than_damaged(registry: RecordRegistry, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Return whether an older snapshot was required, and this newer one is in no record."""
    is_newer = bool(restore.damaged) and snapshot > min(restore.damaged)
    return is_newer and snapshot not in committed_snapshots(registry, restore)
