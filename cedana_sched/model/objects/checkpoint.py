"""`Checkpoint`: one generation of one pod's snapshots, in progress or complete."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field

from cedana_sched.model.objects.base import (
    Condition,
    Generation,
    IdentityPart,
    Index,
    ManifestDigest,
    MicroTime,
    NamespaceUid,
    Number,
    ObjectName,
    PodUid,
    RecordUid,
    ReportedStatus,
    UserWritten,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, Verdict
from cedana_sched.model.records import CheckpointStep, Phase, Transfer


class IdentitySpec(UserWritten):
    """Key of the pod's snapshots; the namespace is the object's own."""

    id: Annotated[IdentityPart, Field(min_length=1, max_length=63)]
    index: Index = 0
    container: IdentityPart = "main"


class PodSpec(UserWritten):
    """One incarnation of a workload. The uid is never reused."""

    name: ObjectName
    uid: PodUid
    node_name: ObjectName


class SnapshotName(UserWritten):
    """A committed generation of an identity of the same namespace."""

    id: IdentityPart
    index: Index = 0
    container: IdentityPart = "main"
    generation: Generation


class OrderStatus(ReportedStatus):
    """An order to the node's agent. A higher number is another order, or a repetition of the same one."""

    number: Number
    order: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class CheckpointSpec(UserWritten):
    """What to save, and what happens to the pod afterwards."""

    uid: RecordUid
    """Uid of the record in logs and in the store's manifests."""
    identity: IdentitySpec
    pod_ref: PodSpec
    namespace_uid: NamespaceUid | None = None
    """Uid of the namespace that the object was created for; the object has no effect in a recreated namespace of the
    same name. Absent if an older version wrote the object, or if the admin shares the name."""
    adapter: str
    """The adapter whose scheduler preempts the pod."""
    hold_uid: RecordUid
    """Uid of the preemption, shared by Events, logs and the PreemptionHold."""
    reason: str
    after_commit: AfterCommit = AfterCommit.STOP
    gang: str | None = None
    """Members of one gang freeze together, and fail together."""
    policy: CheckpointPolicy = CheckpointPolicy()
    attempt: Annotated[int, Field(ge=1)] = 1
    creation_time: MicroTime
    workload_start_time: MicroTime | None = None
    first_order: OrderStatus | None = None
    """Effective until `status.order` is set; a create request cannot set the status."""


class AnswerStatus(ReportedStatus):
    """The agent's answer to the order of that number."""

    number: Number
    outcome: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class TransferStatus(ReportedStatus):
    """Bytes transferred so far: read = zero + reused + new; `stored` is the compressed size of new in the store."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    stored_bytes: int = 0

    @classmethod
    def from_transfer(cls, transfer: Transfer) -> Self:
        return cls.model_validate(transfer, from_attributes=True)

    @property
    def as_transfer(self) -> Transfer:
        return Transfer(**dict(self))


class CheckpointStatus(ReportedStatus):
    """Observed state. `phase` has the values of KEP-5823's `PodCheckpoint`; `step` is finer."""

    phase: Phase = Phase.PENDING
    step: CheckpointStep = CheckpointStep.WAITING
    deadline: MicroTime
    """When the eviction proceeds, committed or not."""
    snapshot: SnapshotName | None = None
    """The committed snapshot."""
    manifest_digest: ManifestDigest | None = None
    """BLAKE3 of the snapshot's manifest; a manifest with another digest is not restored."""
    transfer: TransferStatus = TransferStatus()
    read_size: str | None = None
    """`transfer.readBytes`, human-readable: `3.1 GiB`."""
    stored_size: str | None = None
    """`transfer.storedBytes`, human-readable."""
    freeze_time: MicroTime | None = None
    commit_time: MicroTime | None = None
    completion_time: MicroTime | None = None
    """When the step became terminal."""
    message: str | None = None
    """Why the checkpoint failed."""
    verdict: Verdict | None = None
    retry_time: MicroTime | None = None
    cancelled: bool = False
    workload_gone: bool = False
    """The pod has ended, or was deleted."""
    kill_pending: bool = False
    """The pod stays frozen, and is killed when it is deleted."""
    eviction_cancelled: bool = False
    """The pod was not evicted, and runs on past its snapshot."""
    resumed: bool = False
    """Whether a pod was restored from the snapshot, or at least its node was ordered to."""
    workload_ended: bool = False
    """Whether the pod ran on past its snapshot, and has ended since then, otherwise than with its node."""
    unconfirmed: bool = False
    cleanup_pending: bool = False
    """The pod runs on; the snapshot that the cancelled checkpoint may have stored is still to be removed."""
    conditions: tuple[Condition, ...] = ()
    order: OrderStatus | None = None
    answer: AnswerStatus | None = None
