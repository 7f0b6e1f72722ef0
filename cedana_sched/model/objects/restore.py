"""`Restore`: one start of a pod, from a snapshot, or cold with a reason."""

from __future__ import annotations

from cedana_sched.model.objects.base import (
    Condition,
    ManifestDigest,
    MicroTime,
    NamespaceUid,
    RecordUid,
    ReportedStatus,
    UserWritten,
)
from cedana_sched.model.objects.checkpoint import (
    AnswerStatus,
    IdentitySpec,
    OrderStatus,
    PodSpec,
    SnapshotName,
    TransferStatus,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.records import RestoreStep


class RestoreSpec(UserWritten):
    """The pod to restore, and its identity."""

    uid: RecordUid
    """Uid of the record in logs."""
    identity: IdentitySpec
    pod_ref: PodSpec
    namespace_uid: NamespaceUid | None = None
    """Uid of the namespace that the object was created for; the object has no effect in a recreated namespace of the
    same name. Absent if an older version wrote the object, or if the admin shares the name."""
    adapter: str
    policy: CheckpointPolicy = CheckpointPolicy()
    requested_snapshot: SnapshotName | None = None
    """The snapshot that a user requested; the newest one if absent."""
    creation_time: MicroTime


class RestoreStatus(ReportedStatus):
    """Observed state of the restore."""

    step: RestoreStep = RestoreStep.WAITING
    deadline: MicroTime
    snapshot: SnapshotName | None = None
    """The claimed snapshot."""
    manifest_digest: ManifestDigest | None = None
    """The digest recorded by the Checkpoint that created the snapshot."""
    ran_on: bool | None = None
    """Whether the program had executed after the snapshot before, so that files in volumes may be ahead of it; absent
    if unknown."""
    resumed_snapshot: SnapshotName | None = None
    """The snapshot that the node was ordered to restore, also if that failed."""
    newest_snapshot: SnapshotName | None = None
    """The newest snapshot known to be committed when the pod started; absent if none was."""
    incarnation: int = 0
    """How often the pod's containers had been recreated before, for example after a reboot of the node."""
    predecessor: str | None = None
    """Why an earlier pod of its identity may still run; until that has ended, the pod waits."""
    cold: bool = False
    message: str | None = None
    start_time: MicroTime | None = None
    completion_time: MicroTime | None = None
    """When the step became terminal."""
    damaged: tuple[SnapshotName, ...] = ()
    """Snapshots that the node could not read completely."""
    lost_with_node: bool = False
    """Whether the pod ended because its node was lost; then `onNodeLoss` applies to its successor."""
    loss: str | None = None
    """How an earlier pod of its identity was lost with its node, if no other one had run since then: `onNodeLoss`
    applies. Later Restores inherit it until a pod has run."""
    quick_failures: tuple[SnapshotName, ...] = ()
    """Snapshots whose program failed soon after a restore, once per failure; a snapshot with enough of them is
    quarantined."""
    transfer: TransferStatus | None = None
    """Bytes of the snapshot staged so far; written by the agent."""
    conditions: tuple[Condition, ...] = ()
    replaced_by: str | None = None
    """Set when the pod restarts and another Restore takes over: the container runtime's id of the new restore
    container; written by the agent."""
    order: OrderStatus | None = None
    answer: AnswerStatus | None = None
