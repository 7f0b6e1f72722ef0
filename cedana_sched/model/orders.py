"""What the coordinator tells a node's agent, and what the agent answers.

Orders are idempotent: an order that is repeated after a lost message, or after a restart of either side, finds
the state it asks for and answers again. Each order is answered by exactly one of the outcomes named beside it,
or, while it lasts, preceded by any number of `Progress` or `StageProgress`.
"""

from __future__ import annotations

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.policy import Compression, Retention
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Transfer


class Freeze(msgspec.Struct, frozen=True, tag=True):
    """Stop the workload where it is: `Frozen`, or `CheckpointFailed`.

    It runs on until its dump may begin at once; a member of a gang is stopped without regard to that.
    """

    checkpoint_uid: str
    workload: WorkloadRef
    in_gang: bool = False
    timeout_seconds: float | None = None
    """As of `Dump`: who has less time left comes first."""


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Stream the frozen workload to the store and commit it, leaving it frozen: `Committed` or `CheckpointFailed`."""

    checkpoint_uid: str
    workload: WorkloadRef
    identity: Identity
    compression: Compression
    reason: str
    adapter: str
    timeout_seconds: float
    """How long the dump may take; the coordinator's deadline as seen when the order was given."""
    lineage: Lineage | None = None
    """Where its work comes from; None, from an older coordinator: from the newest generation."""
    runs_on: bool = False
    """Whether a `Thaw` follows the commit, and no `Kill`; an older coordinator does not say so."""


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Kill the frozen workload without letting it execute another instruction: `Killed`."""

    checkpoint_uid: str
    workload: WorkloadRef
    insist: bool = False
    """Whether it dies now: its eviction was released, and its owner has not said for long that it may go."""


class Thaw(msgspec.Struct, frozen=True, tag=True):
    """Let the frozen workload run on, its snapshot committed: `Thawed`.

    Like `Abort` it undoes this checkpoint's freeze only, and a `Freeze` of the same checkpoint that arrives later
    is refused with `CheckpointFailed`.
    """

    checkpoint_uid: str
    workload: WorkloadRef


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a dump if one is under way, remove what it committed or uploaded, let the workload run on: `Aborted`.

    It undoes this checkpoint only: a workload that another checkpoint has frozen stays frozen. A `Freeze` or `Dump`
    of the same checkpoint that arrives later is refused with `CheckpointFailed`.
    """

    checkpoint_uid: str
    workload: WorkloadRef
    identity: Identity
    why: str


class FindSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Look up the newest committed snapshot of an identity, or check the one that is `wanted`: `SnapshotFound`.

    Or `StageFailed`, to be asked again: the store is away, and nobody knows.
    """

    restore_uid: str
    identity: Identity
    requested_snapshot: SnapshotRef | None = None
    excluding: tuple[str, ...] = ()
    """Checkpoints (uids) that were called off: a snapshot that one of them committed all the same is passed over."""
    avoiding: tuple[int, ...] = ()
    """Generations that are passed over, because they have killed their program, or are damaged."""
    namespace_uid: str = ""
    """Which namespace its snapshots are of, as the object says in which it stands; see `WorkloadRef`."""
    newer_seconds: float = 0.0
    """Where a newer version wrote the newest, this node's upgrade is waited for so long; 0: an older one is taken."""


class Stage(msgspec.Struct, frozen=True, tag=True):
    """Fetch and verify a snapshot, and check that this machine can continue it: `Staged` or `StageFailed`."""

    restore_uid: str
    workload: WorkloadRef
    snapshot: SnapshotRef
    manifest_digest: str = ""
    """As `Committed` said: another one in its place is refused. Empty: nobody knows."""


class RestoreSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Continue the staged processes as this workload: `RestoreSucceeded` or `RestoreFailed`."""

    restore_uid: str
    workload: WorkloadRef
    snapshot: SnapshotRef
    manifest_digest: str = ""
    """As of `Stage`."""


class StartCold(msgspec.Struct, frozen=True, tag=True):
    """Let the workload start from its beginning: `StartedCold`. `why` is None when nothing was there to continue.

    A workload that runs already, because a `RestoreSnapshot` before it succeeded, is left alone.
    """

    restore_uid: str
    workload: WorkloadRef
    why: str | None = None


class FailWorkload(msgspec.Struct, frozen=True, tag=True):
    """Fail the waiting workload, because its policy forbids a cold start: `WorkloadFailed`.

    A workload that runs already, because a `RestoreSnapshot` before it succeeded, is left alone: `RestoreSucceeded`.
    """

    restore_uid: str
    workload: WorkloadRef
    why: str


class ApplyRetention(msgspec.Struct, frozen=True, tag=True):
    """Apply a retention to an identity's snapshots, sparing those that are claimed: `RetentionApplied`."""

    checkpoint_uid: str
    identity: Identity
    retention: Retention
    spare: tuple[int, ...] = ()
    """Generations that a running restore has claimed."""
    namespace_uid: str = ""
    """Which namespace its snapshots are of, as the object says in which it stands; see `WorkloadRef`."""


class RemoveSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Remove one snapshot, if it is (still) there, and what only it needed: `SnapshotRemoved` or `RemovalFailed`.

    No checkpoint is under way that it belongs to any more. Whoever is fetching it finds that it is gone.
    """

    checkpoint_uid: str
    snapshot: SnapshotRef
    namespace_uid: str = ""
    """Which namespace its snapshots are of, as the object says in which it stands; see `WorkloadRef`."""


class DiscardCancelled(msgspec.Struct, frozen=True, tag=True):
    """Remove what a called-off checkpoint has committed, if it has: `SnapshotRemoved` or `RemovalFailed`.

    Its own node was to do that, and says nothing any more; or it has let the workload run on, and failed in this alone.
    """

    checkpoint_uid: str
    identity: Identity
    namespace_uid: str = ""
    """Which namespace its snapshots are of, as the object says in which it stands; see `WorkloadRef`."""


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
    """A generation that was the newest until now, and that this one does not continue."""
    manifest_digest: str = ""
    """BLAKE3 of its manifest's file, in hexadecimal digits: whoever continues it compares. Empty: unknown."""


class CheckpointFailed(msgspec.Struct, frozen=True, tag=True):
    """The workload may be frozen or running; an `Abort` puts it right. `retryable`: the same dump may work later."""

    checkpoint_uid: str
    why: str
    retryable: bool = False
    workload_gone: bool = False
    """Nothing of the workload runs, nor will."""


class Killed(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    still_frozen: bool = False
    """It is still there, frozen, and dies when its owner says so (a pod is deleted), or when a `Kill` insists: until
    then `Thaw` spares it."""


class Thawed(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """The workload runs on."""

    checkpoint_uid: str
    cleanup_pending: bool = False
    """What it may have committed could not be removed yet; an older agent does not say so."""


class SnapshotFound(msgspec.Struct, frozen=True, tag=True):
    """`snapshot` is None when there is none; `problem` says why a snapshot that should be there cannot be used."""

    restore_uid: str
    snapshot: SnapshotRef | None = None
    problem: str | None = None


class StageProgress(msgspec.Struct, frozen=True, tag=True):
    """Precedes the answer to a `Stage`, now and then, while bytes come."""

    restore_uid: str
    done_bytes: int


class Staged(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str


class StageFailed(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str
    why: str
    retryable: bool = False
    damaged: bool = False
    """The store has the snapshot, and never as it was written: an older one may be whole."""


class RestoreSucceeded(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str


class RestoreFailed(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the processes is left running."""

    restore_uid: str
    why: str


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    restore_uid: str


class WorkloadFailed(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the workload runs. Of one that was being continued its end says so for certain."""

    restore_uid: str


class RetentionApplied(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str
    removed: tuple[SnapshotRef, ...] = ()


class SnapshotRemoved(msgspec.Struct, frozen=True, tag=True):
    checkpoint_uid: str


class RemovalFailed(msgspec.Struct, frozen=True, tag=True):
    """The snapshot is there, or nobody knows; another node, or a later time, may do better."""

    checkpoint_uid: str
    why: str


Outcome = (
    Frozen
    | Progress
    | Committed
    | CheckpointFailed
    | Killed
    | Thawed
    | Aborted
    | SnapshotFound
    | StageProgress
    | Staged
    | StageFailed
    | RestoreSucceeded
    | RestoreFailed
    | StartedCold
    | WorkloadFailed
    | RetentionApplied
    | SnapshotRemoved
    | RemovalFailed
)
