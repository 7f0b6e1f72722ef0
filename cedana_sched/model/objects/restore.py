"""`Restore`: one return of a pod, from a snapshot, or cold and why."""

from __future__ import annotations

from cedana_sched.model.objects.base import (
    Condition,
    ManifestDigest,
    MicroTime,
    NamespaceUid,
    RecordUid,
    Reported,
    Written,
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


class RestoreSpec(Written):
    """Who returns as whom."""

    uid: RecordUid
    """Its name in logs."""
    identity: IdentitySpec
    pod_ref: PodSpec
    namespace_uid: NamespaceUid | None = None
    """Of the namespace that it was made for: in another one of that name it counts for nothing. Absent where an older
    version wrote it, or where the admin shares the name."""
    adapter: str
    policy: CheckpointPolicy = CheckpointPolicy()
    requested_snapshot: SnapshotName | None = None
    """The very snapshot that a person asked for; the newest one where it is absent."""
    creation_time: MicroTime


class RestoreStatus(Reported):
    """How far it is."""

    step: RestoreStep = RestoreStep.WAITING
    deadline: MicroTime
    snapshot: SnapshotName | None = None
    """The snapshot that it claims."""
    manifest_digest: ManifestDigest | None = None
    """As the Checkpoint says that made it."""
    newest_snapshot: SnapshotName | None = None
    """The newest snapshot that was known to be committed when the pod started; absent where none was."""
    incarnation: int = 0
    """How often the pod's containers had been made anew before: after its node rebooted, say."""
    cold: bool = False
    message: str | None = None
    start_time: MicroTime | None = None
    completion_time: MicroTime | None = None
    damaged: tuple[SnapshotName, ...] = ()
    """Snapshots that its node could not read whole."""
    quick_failures: tuple[SnapshotName, ...] = ()
    """Snapshots from which it was continued only to fail soon, once for each time; enough of them set one aside."""
    transfer: TransferStatus | None = None
    """How much of the snapshot has come; the agent writes it."""
    conditions: tuple[Condition, ...] = ()
    replaced_by: str | None = None
    """The pod begins again, and another Restore is for that: its restore container, by the container runtime's id; the
    node's agent writes it."""
    order: OrderStatus | None = None
    answer: AnswerStatus | None = None
