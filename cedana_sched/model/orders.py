"""Orders from the coordinator to a node's agent, and the agent's answers.

Orders are idempotent: the agent finds the requested state of an order repeated after a lost message, or after a restart
of either side, and answers again. Each order is answered by exactly one of the outcomes in its description, preceded by
any number of `Progress` or `StageProgress`.
"""

from __future__ import annotations

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.policy import Compression, Retention
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Transfer


class Freeze(msgspec.Struct, frozen=True, tag=True):
    """Freeze the workload: `Frozen`, or `CheckpointFailed`.

    The workload runs on until its dump may begin at once; a gang member is frozen without waiting for that.
    """

    checkpoint_uid: str
    workload: WorkloadRef
    in_gang: bool = False
    timeout_seconds: float | None = None
    """As of `Dump`; the order with the least time left has priority."""


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Stream the frozen workload to the store and commit, leaving it frozen: `Committed` or `CheckpointFailed`."""

    checkpoint_uid: str
    workload: WorkloadRef
    identity: Identity
    compression: Compression
    reason: str
    adapter: str
    timeout_seconds: float
    """Time left for the dump until the coordinator's deadline, when the order was sent."""
    lineage: Lineage | None = None
    """Lineage of the workload; None from an older coordinator, which implies the newest generation."""
    runs_on: bool = False
    """Whether `Thaw` follows the commit instead of `Kill`; an older coordinator does not set it."""


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Kill the frozen workload without executing another instruction: `Killed`."""

    checkpoint_uid: str
    workload: WorkloadRef
    insist: bool = False
    """Kill now: the eviction was released, and the workload was not deleted in time."""


class Thaw(msgspec.Struct, frozen=True, tag=True):
    """Thaw the workload after the commit: `Thawed`.

    Like `Abort`, undoes only this checkpoint's freeze; a later `Freeze` of the same checkpoint is refused with
    `CheckpointFailed`.
    """

    checkpoint_uid: str
    workload: WorkloadRef


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a dump in progress, remove its snapshot or upload, thaw the workload: `Aborted`.

    Undoes only this checkpoint: a workload frozen by another checkpoint stays frozen. A later `Freeze` or `Dump` of the
    same checkpoint is refused with `CheckpointFailed`.
    """

    checkpoint_uid: str
    workload: WorkloadRef
    identity: Identity
    why: str


class FindSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Look up the newest committed snapshot of an identity, or check the requested one: `SnapshotFound`.

    `StageFailed` if the store is unreachable and the result unknown; the coordinator repeats the order.
    """

    restore_uid: str
    identity: Identity
    requested_snapshot: SnapshotRef | None = None
    excluding: tuple[str, ...] = ()
    """Uids of cancelled checkpoints; a snapshot that one of them committed nevertheless is skipped, or refused if it is
    the requested one."""
    avoiding: tuple[int, ...] = ()
    """Generations to skip: quarantined or damaged."""
    namespace_uid: str = ""
    """Uid of the snapshots' namespace, from the order's object; see `WorkloadRef`."""
    newer_seconds: float = 0.0
    """How long to wait for this node's upgrade if a newer version wrote the newest snapshot; 0: take an older one."""


class Stage(msgspec.Struct, frozen=True, tag=True):
    """Fetch and verify a snapshot, and check this machine's compatibility: `Staged` or `StageFailed`."""

    restore_uid: str
    workload: WorkloadRef
    snapshot: SnapshotRef
    manifest_digest: str = ""
    """The digest from `Committed`; a manifest with another digest is refused. Empty: unknown."""


class RestoreSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Restore the staged processes as this workload: `RestoreSucceeded` or `RestoreFailed`."""

    restore_uid: str
    workload: WorkloadRef
    snapshot: SnapshotRef
    manifest_digest: str = ""
    """As of `Stage`."""
    ran_on: bool | None = None
    """Whether the program has executed after the snapshot, so that files may be ahead of it. None: unknown, or from an
    older coordinator."""
    is_same_identity: bool = False
    """Whether the snapshot is of the workload's own identity. An older coordinator does not set it."""


class StartCold(msgspec.Struct, frozen=True, tag=True):
    """Start the workload cold: `StartedCold`. `why` is None if there was no snapshot to restore.

    No effect on a workload that an earlier `RestoreSnapshot` has started.
    """

    restore_uid: str
    workload: WorkloadRef
    why: str | None = None


class FailWorkload(msgspec.Struct, frozen=True, tag=True):
    """Fail the waiting workload, because its policy forbids a cold start: `WorkloadFailed`.

    No effect on a workload that an earlier `RestoreSnapshot` has started: `RestoreSucceeded`.
    """

    restore_uid: str
    workload: WorkloadRef
    why: str


class ApplyRetention(msgspec.Struct, frozen=True, tag=True):
    """Apply retention to an identity's snapshots, except claimed ones: `RetentionApplied`."""

    checkpoint_uid: str
    identity: Identity
    retention: Retention
    spare: tuple[int, ...] = ()
    """Generations claimed by active restores."""
    namespace_uid: str = ""
    """Uid of the snapshots' namespace, from the order's object; see `WorkloadRef`."""


class RemoveSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Remove one snapshot, if it still exists, and its unshared data: `SnapshotRemoved` or `RemovalFailed`.

    Its checkpoint is terminal. A concurrent fetch of the snapshot fails with not found.
    """

    checkpoint_uid: str
    snapshot: SnapshotRef
    namespace_uid: str = ""
    """Uid of the snapshots' namespace, from the order's object; see `WorkloadRef`."""


class DiscardCancelled(msgspec.Struct, frozen=True, tag=True):
    """Remove the snapshot of a cancelled checkpoint, if one was committed: `SnapshotRemoved` or `RemovalFailed`.

    Sent when the checkpoint's own node is silent, or has thawed the workload but failed to remove the snapshot.
    """

    checkpoint_uid: str
    identity: Identity
    namespace_uid: str = ""
    """Uid of the snapshots' namespace, from the order's object; see `WorkloadRef`."""


Order = (
    Freeze
    | Dump
    | Kill
    | Thaw
    | Abort
    | FindSnapshot
    | Stage
    | RestoreSnapshot
    | StartCold
    | FailWorkload
    | ApplyRetention
    | RemoveSnapshot
    | DiscardCancelled
)


class Frozen(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    transfer: Transfer


class Committed(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    snapshot: SnapshotRef
    transfer: Transfer
    leaves: SnapshotRef | None = None
    """The previously newest generation, if this one does not continue it."""
    manifest_digest: str = ""
    """BLAKE3 of the manifest file, hexadecimal, verified on restore. Empty: unknown."""


class CheckpointFailed(msgspec.Struct, frozen=True, tag=True):
    """The workload may be frozen or running; `Abort` cleans up. `retryable`: a retry may succeed."""

    checkpoint_uid: str
    why: str
    retryable: bool = False
    workload_gone: bool = False
    """No process of the workload runs or will run."""


class Killed(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    still_frozen: bool = False
    """The workload is still frozen, and is killed when its owner deletes the pod, or by a `Kill` with `insist`; until
    then `Thaw` spares it."""


class Thawed(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """The workload runs on."""

    checkpoint_uid: str
    cleanup_pending: bool = False
    """A snapshot that may have been committed could not be removed yet; an older agent does not set it."""


class SnapshotFound(msgspec.Struct, frozen=True, tag=True):
    """`snapshot` is None if there is none; `problem` is why an expected snapshot cannot be used."""

    restore_uid: str
    snapshot: SnapshotRef | None = None
    problem: str | None = None


class StageProgress(msgspec.Struct, frozen=True, tag=True):
    """Sent periodically before the answer to a `Stage`, while bytes arrive."""

    restore_uid: str
    done_bytes: int


class Staged(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str


class StageFailed(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str
    why: str
    retryable: bool = False
    damaged: bool = False
    """The snapshot is permanently damaged in the store; an older one may be intact."""


class RestoreSucceeded(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str
    changed_files: tuple[str, ...] = ()
    """Notes on files outside the snapshot that had changed since."""


class RestoreFailed(msgspec.Struct, frozen=True, tag=True):
    """No restored process is left running."""

    restore_uid: str
    why: str
    files_changed: bool = False
    """Whether files outside the snapshot have changed since, so that `on_volume_change` decides."""


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str


class WorkloadFailed(msgspec.Struct, frozen=True, tag=True):
    """No process of the workload runs. If a restore was in progress, only the workload's end is proof of that."""

    restore_uid: str


class RetentionApplied(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    removed: tuple[SnapshotRef, ...] = ()


class SnapshotRemoved(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str


class RemovalFailed(msgspec.Struct, frozen=True, tag=True):
    """The snapshot still exists, or its state is unknown; another node or a later attempt may succeed."""

    checkpoint_uid: str
    why: str


CheckpointOutcome = (
    Frozen
    | Progress
    | Committed
    | CheckpointFailed
    | Killed
    | Thawed
    | Aborted
    | RetentionApplied
    | SnapshotRemoved
    | RemovalFailed
)
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
Outcome = CheckpointOutcome | RestoreOutcome
