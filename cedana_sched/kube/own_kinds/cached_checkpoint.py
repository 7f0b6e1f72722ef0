"""Checkpoints as components cache them: all of the cluster, archived ones included.

`Checkpoint` has what webhooks and extenders read, and `KnownCheckpoint` what the coordinator reads besides: a third
more memory, which the webhooks' replicas are spared.
"""

from __future__ import annotations

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, read_time
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PartialStruct, PodRef, SnapshotName, intern_texts
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, CheckpointStep, Phase, has_run_on
from cedana_sched.model.texts import truncate_text

_LEAVES_NOTHING = frozenset({CheckpointStep.ABORTING, CheckpointStep.FAILED})


class CheckpointSpec(PartialStruct, frozen=True):
    """`hold_uid` is the uid of the PreemptionHold that waits for this checkpoint."""

    identity: IdentitySpec
    pod_ref: PodRef = PodRef()
    hold_uid: str = ""


class CheckpointStatus(PartialStruct, frozen=True):
    phase: Phase = Phase.PENDING
    step: CheckpointStep = CheckpointStep.WAITING
    snapshot: SnapshotName | None = None
    commit_time: str | None = None


class Checkpoint(PartialStruct, frozen=True):
    """A Checkpoint, reduced to its identity, its pod, and its snapshot."""

    metadata: Metadata
    spec: CheckpointSpec
    status: CheckpointStatus = CheckpointStatus()

    @property
    def restorable_generation(self) -> int | None:
        """Generation of the snapshot once it can be restored; None before, and if it failed or is being deleted."""
        if self.is_deleted:
            return None
        if self.status.phase is Phase.READY and self.status.step is CheckpointStep.READY and self.status.snapshot:
            return self.status.snapshot.generation
        return None

    @property
    def committed_at(self) -> float | None:
        """Seconds since the epoch; None if nothing is committed, or the object has no time."""
        return read_time(self.status.commit_time)

    @property
    def in_flight(self) -> bool:
        return self.status.step not in TERMINAL_CHECKPOINT_STEPS

    @property
    def is_deleted(self) -> bool:
        """Whether it is deleted once it has no finalizers."""
        return self.metadata.deletion_timestamp is not None


class Message(PartialStruct, frozen=True):
    """An order or an outcome, reduced to its type and reason.

    Both texts are truncated: an agent can write any text into each Checkpoint of its node, and all Checkpoints are
    cached.
    """

    type: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        """Truncate the texts."""
        for field, text in (("type", self.type), ("why", self.why)):
            msgspec.structs.force_setattr(self, field, truncate_text(text))
        intern_texts(self, "type")


class GivenMessage(PartialStruct, frozen=True):
    number: int
    order: Message = Message()


class AnsweredMessage(PartialStruct, frozen=True):
    number: int
    outcome: Message = Message()


class KnownSpec(CheckpointSpec, frozen=True):
    uid: str = ""
    namespace_uid: str = ""
    reason: str = ""
    after_commit: str = ""

    def __post_init__(self) -> None:
        """Share the texts that many objects have."""
        intern_texts(self, "namespace_uid", "reason", "after_commit")


class KnownStatus(CheckpointStatus, frozen=True):
    unconfirmed: bool = False
    eviction_cancelled: bool = False
    resumed: bool = False
    workload_ended: bool = False
    cancelled: bool = False
    freeze_time: str | None = None
    completion_time: str | None = None
    manifest_digest: str = ""
    order: GivenMessage | None = None
    answer: AnsweredMessage | None = None


class KnownCheckpoint(Checkpoint, frozen=True):
    """A Checkpoint, tracked or archived, reduced to the fields that the coordinator reads outside its journal."""

    metadata: Metadata
    spec: KnownSpec
    status: KnownStatus = KnownStatus()

    @property
    def identity(self) -> Identity:
        named = self.spec.identity
        return Identity(self.metadata.namespace, named.id, named.index, named.container)

    @property
    def node(self) -> str:
        """Node where it was taken."""
        return self.spec.pod_ref.node_name

    @property
    def snapshot(self) -> SnapshotRef | None:
        if (named := self.status.snapshot) is None:
            return None
        identity = Identity(self.metadata.namespace, named.id, named.index, named.container)
        return SnapshotRef(identity, named.generation)

    @property
    def has_pod_run_on(self) -> bool:
        """Whether the saved pod was thawed after the commit, and has work that the snapshot lacks."""
        return has_run_on(self.spec.after_commit, eviction_cancelled=self.status.eviction_cancelled, resumed=False)

    @property
    def has_run_on(self) -> bool:
        """Whether the saved pod, or one that was restored from the snapshot, may have executed after it."""
        return self.has_pod_run_on or self.status.resumed

    @property
    def manifest_digest(self) -> str:
        """Digest of the snapshot's manifest; empty if unknown."""
        return self.status.manifest_digest

    @property
    def began_at(self) -> float | None:
        """Seconds since the epoch; None if the API server has not dated the object."""
        return read_time(self.metadata.creation_timestamp)

    @property
    def has_possible_snapshot(self) -> bool:
        """Whether it has a snapshot, or may have one soon."""
        return self.status.step not in _LEAVES_NOTHING and not self.is_deleted

    @property
    def has_cleanup_finalizer(self) -> bool:
        """Whether our finalizer keeps it."""
        return names.SNAPSHOT_CLEANUP in self.metadata.finalizers

    @property
    def is_confirmed(self) -> bool:
        """Whether it is terminal and confirmed: its node has done everything ordered."""
        return self.status.step in TERMINAL_CHECKPOINT_STEPS and not self.status.unconfirmed

    @property
    def unanswered_end_time(self) -> float | None:
        """When it ended without an answer of its node, which may have committed it although it was cancelled.

        Seconds since the epoch; None: the store contains nothing of it except `snapshot`.
        """
        status = self.status
        is_left = status.step is CheckpointStep.FAILED and status.unconfirmed and status.cancelled
        return (read_time(status.completion_time) or 0.0) if is_left and status.freeze_time else None

    @property
    def is_archived(self) -> bool:
        """Whether its record is archived."""
        return not {names.ARCHIVED, names.REMOVE_SNAPSHOT}.isdisjoint(self.metadata.labels)


class _SavedStatus(PartialStruct, frozen=True):
    snapshot: dict[str, msgspec.Raw] | None = None


class SavedCheckpoint(PartialStruct, frozen=True):
    """A Checkpoint, reduced to whether it names a snapshot; whatever else cannot be read does not matter for that."""

    status: _SavedStatus = _SavedStatus()
