"""`Checkpoint`: one generation of one pod, in the making or made."""

from __future__ import annotations

from typing import Annotated, Any

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
    Reported,
    Written,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, Verdict
from cedana_sched.model.records import CheckpointStep, Phase


class IdentitySpec(Written):
    """The name under which snapshots are found again; the namespace is the object's own."""

    id: Annotated[IdentityPart, Field(min_length=1, max_length=63)]
    index: Index = 0
    container: IdentityPart = "main"


class PodSpec(Written):
    """One incarnation of a workload. Its uid is never used twice."""

    name: ObjectName
    uid: PodUid
    node_name: ObjectName


class SnapshotName(Written):
    """A committed generation of an identity of the same namespace."""

    id: IdentityPart
    index: Index = 0
    container: IdentityPart = "main"
    generation: Generation


class OrderStatus(Reported):
    """The order for the node's agent. A higher number is another order, or the same one again."""

    number: Number
    order: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class CheckpointSpec(Written):
    """What is to be saved, and what happens to the pod then."""

    uid: RecordUid
    """Its name in logs and in the store's manifests."""
    identity: IdentitySpec
    pod_ref: PodSpec
    namespace_uid: NamespaceUid | None = None
    """Of the namespace that it was made for: in another one of that name it counts for nothing. Absent where an older
    version wrote it, or where the admin shares the name."""
    adapter: str
    """Which scheduler's preemption it is."""
    hold_uid: RecordUid
    """The preemption it belongs to: the uid that Events, logs and the PreemptionHold share."""
    reason: str
    after_commit: AfterCommit = AfterCommit.STOP
    gang: str | None = None
    """Members of one gang freeze together, and fail together."""
    policy: CheckpointPolicy = CheckpointPolicy()
    attempt: Annotated[int, Field(ge=1)] = 1
    creation_time: MicroTime
    workload_start_time: MicroTime | None = None
    first_order: OrderStatus | None = None
    """Counts until `status.order` shows one; a creation cannot set a status."""


class AnswerStatus(Reported):
    """What the agent says of the order of that number."""

    number: Number
    outcome: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class TransferStatus(Reported):
    """Bytes, as far as they are known: read = zero + reused + new, of which `stored` is what the store took."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    stored_bytes: int = 0


class CheckpointStatus(Reported):
    """How far it is. `phase` has the values of KEP-5823's `PodCheckpoint`, `step` is finer."""

    phase: Phase = Phase.PENDING
    step: CheckpointStep = CheckpointStep.WAITING
    deadline: MicroTime
    """When the eviction proceeds, committed or not."""
    snapshot: SnapshotName | None = None
    """What it made."""
    manifest_digest: ManifestDigest | None = None
    """BLAKE3 of the snapshot's manifest: another one in its place is not continued."""
    transfer: TransferStatus = TransferStatus()
    read_size: str | None = None
    """`transfer.readBytes`, for people: `3.1 GiB`."""
    stored_size: str | None = None
    """`transfer.storedBytes`, likewise."""
    freeze_time: MicroTime | None = None
    commit_time: MicroTime | None = None
    completion_time: MicroTime | None = None
    message: str | None = None
    """Why it failed."""
    verdict: Verdict | None = None
    retry_time: MicroTime | None = None
    cancelled: bool = False
    workload_gone: bool = False
    kill_pending: bool = False
    """The frozen pod dies when it is deleted."""
    eviction_cancelled: bool = False
    """The pod was not evicted after all, and runs on past its snapshot."""
    unconfirmed: bool = False
    cleanup_pending: bool = False
    """The pod runs on; what the checkpoint may have stored, though it was called off, is still to be removed."""
    conditions: tuple[Condition, ...] = ()
    order: OrderStatus | None = None
    answer: AnswerStatus | None = None
