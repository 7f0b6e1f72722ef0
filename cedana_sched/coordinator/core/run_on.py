"""Whether a program has executed after one of its snapshots: then files in volumes may be ahead of it.

It has if the saved workload was thawed after the commit (a periodic snapshot, a cancelled eviction), and if a node was
ordered to restore processes from the snapshot: also if the node was lost before it confirmed that, if the restored
workload has ended, and if its record has expired.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import AfterCommit, WorkloadRef
from cedana_sched.model.records import Restore


def has_run_on(
    registry: RecordRegistry, snapshot: SnapshotRef, workload: WorkloadRef, reported: Collection[SnapshotRef] = ()
) -> bool | None:
    """Return whether the program of the snapshot may have executed after it; None if nothing is known of the snapshot.

    Args:
        registry: its records may have expired.
        snapshot: a committed one.
        workload: of the namespace of the snapshot.
        reported: snapshots after which a program has executed by expired records.
    """
    if snapshot in reported:
        return True
    checkpoints = registry.checkpoints_of_identity(snapshot.identity, workload)
    made = [one for one in checkpoints if one.snapshot == snapshot]
    restores = registry.restores_naming(snapshot.identity, workload)
    if any(snapshot == (one.resumed_snapshot or _running_from(one)) for one in restores):
        return True
    stopped = [one for one in made if one.after_commit is AfterCommit.STOP]  # a checkpoint on request may share theirs
    return any(one.has_run_on for one in stopped or made) if made else None


def _running_from(restore: Restore) -> SnapshotRef | None:
    """Return the snapshot from which the workload runs, or ran; older coordinators recorded only its claim."""
    return None if restore.cold or restore.running_at is None else restore.snapshot


def mark_resumed(registry: RecordRegistry, restore: Restore) -> None:
    """Record in the Checkpoints of its snapshot that the node of this restore is ordered to restore processes."""
    if (snapshot := restore.resumed_snapshot) is None:
        return
    for checkpoint in registry.checkpoints_of_identity(snapshot.identity, restore.workload):
        if checkpoint.snapshot == snapshot and not checkpoint.resumed:
            registry.update(replace(checkpoint, resumed=True))
