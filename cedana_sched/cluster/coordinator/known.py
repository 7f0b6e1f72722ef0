"""Checkpoints read from objects: both tracked and archived ones."""

from __future__ import annotations

from math import inf

import msgspec

from cedana_sched.coordinator.core.messages import short
from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Metadata, Pod, read_time
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.records import TERMINAL_CHECKPOINT_STEPS, CheckpointStep
from cedana_sched.model.texts import cut

ANY_NAMESPACE = "any"
"""Placeholder: the API server validates namespace names."""
_LEAVES_NOTHING = frozenset({CheckpointStep.ABORTING, CheckpointStep.FAILED})


class _Read(msgspec.Struct, frozen=True, rename=api_name):
    pass


class _IdentitySpec(_Read, frozen=True):
    """Raises ValueError if malformed, so that the object is not read."""

    id: str
    index: int = 0
    container: str = "main"

    def __post_init__(self) -> None:
        _check(self)


def _check(name: _IdentitySpec | _SnapshotName) -> None:
    try:
        Identity(ANY_NAMESPACE, name.id, name.index, name.container)
    except UsageError as error:
        raise ValueError(str(error)) from error


class _PodSpec(_Read, frozen=True):
    node_name: str = ""
    uid: str = ""


class _Spec(_Read, frozen=True):
    identity: _IdentitySpec
    uid: str = ""
    pod_ref: _PodSpec = _PodSpec()
    namespace_uid: str = ""


class _SnapshotName(_Read, frozen=True):
    """Validated like `_IdentitySpec`."""

    generation: int = 0
    id: str = ""
    index: int = 0
    container: str = "main"

    def __post_init__(self) -> None:
        _check(self)


class _Message(_Read, frozen=True):
    """An order or an outcome, reduced to its type and reason.

    Both texts are truncated: an agent can write any text into each Checkpoint of its node, and all Checkpoints are
    cached.
    """

    type: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        """Truncate the texts."""
        for field, text in (("type", self.type), ("why", self.why)):
            msgspec.structs.force_setattr(self, field, cut(text))


class Given(_Read, frozen=True):
    number: int
    order: _Message = _Message()


class Answered(_Read, frozen=True):
    number: int
    outcome: _Message = _Message()


class _Status(_Read, frozen=True):
    step: CheckpointStep = CheckpointStep.WAITING
    unconfirmed: bool = False
    cancelled: bool = False
    freeze_time: str | None = None
    completion_time: str | None = None
    snapshot: _SnapshotName | None = None
    manifest_digest: str = ""
    commit_time: str | None = None
    order: Given | None = None
    answer: Answered | None = None


class KnownCheckpoint(_Read, frozen=True):
    """A Checkpoint, reduced to the fields read outside the journal."""

    metadata: Metadata
    spec: _Spec
    status: _Status = _Status()

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
    def manifest(self) -> str:
        """Digest of the snapshot's manifest; empty if unknown."""
        return self.status.manifest_digest

    @property
    def committed_at(self) -> float | None:
        """Seconds since the epoch; None if nothing is committed, or the object has no time."""
        return read_time(self.status.commit_time)

    @property
    def began_at(self) -> float | None:
        """Seconds since the epoch; None if the API server has not dated the object."""
        return read_time(self.metadata.creation_timestamp)

    @property
    def may_be_continued(self) -> bool:
        """Whether it has a snapshot, or may have one soon."""
        return self.status.step not in _LEAVES_NOTHING and not self.is_deleted

    @property
    def is_deleted(self) -> bool:
        """Whether it is deleted once it has no finalizers."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_kept(self) -> bool:
        """Whether our finalizer keeps it."""
        return names.SNAPSHOT_CLEANUP in self.metadata.finalizers

    @property
    def is_confirmed(self) -> bool:
        """Whether it is terminal and confirmed: its node has done everything ordered."""
        return self.status.step in TERMINAL_CHECKPOINT_STEPS and not self.status.unconfirmed

    @property
    def left_at(self) -> float | None:
        """When it ended without an answer of its node, which may have committed it although it was cancelled.

        Seconds since the epoch; None: the store contains nothing of it except `snapshot`.
        """
        status = self.status
        is_left = status.step is CheckpointStep.FAILED and status.unconfirmed and status.cancelled
        return (read_time(status.completion_time) or 0.0) if is_left and status.freeze_time else None

    @property
    def is_forgotten(self) -> bool:
        """Whether its record is archived."""
        return not {names.ARCHIVED, names.REMOVE_SNAPSHOT}.isdisjoint(self.metadata.labels)


def in_words(missed: KnownCheckpoint) -> str:
    """Describe a checkpoint that was not restored: its name, and whether its snapshot existed already."""
    if (snapshot := missed.snapshot) is not None:
        return f"{short(snapshot)}, which was there"
    return f"{short(missed.identity)}, which is still being made"


class BySnapshot(Index[SnapshotRef, KnownCheckpoint]):
    """Checkpoints by the snapshot that they describe: usually one, but concurrent preemptions share theirs."""

    def __init__(self, checkpoints: Informer[KnownCheckpoint]) -> None:
        super().__init__(lambda one: one.snapshot, checkpoints)

    def manifest_of(self, snapshot: SnapshotRef) -> str:
        """Return the digest of its manifest; empty if no Checkpoint has it."""
        return next((one.manifest for one in self.of(snapshot) if one.manifest), "")


class ById(Index[tuple[str, str], KnownCheckpoint]):
    """Checkpoints by namespace and id, of all replicas. Implements `adapter.cluster.Snapshots`."""

    def __init__(self, checkpoints: Informer[KnownCheckpoint]) -> None:
        super().__init__(lambda one: (one.metadata.namespace, one.spec.identity.id), checkpoints)
        self.synced = checkpoints.synced

    def has(self, identity: Identity) -> bool:
        """Whether a Checkpoint of any replica of its id exists, including failed ones and those in flight."""
        return next(iter(self.of((identity.namespace, identity.id))), None) is not None

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[SnapshotRef, ...]:
        """See `adapter.cluster.Snapshots`."""
        ready = (one for one in self.of((namespace, identifier)) if one.status.step is CheckpointStep.READY)
        return tuple(one.snapshot for one in ready if one.snapshot is not None and not one.is_deleted)

    def missed_by(self, pod: Pod, identifier: str, index: int | None = None) -> KnownCheckpoint | None:
        """Return the newest checkpoint that a cold-started pod could have restored; in flight it has no snapshot yet.

        Only checkpoints of other pods that began before this pod got its node. `index`: None for any replica's.
        """
        created, started = read_time(pod.metadata.creation_timestamp), pod.status.started_at
        came = inf if started is None else max(started, created or started)  # of two clocks, one may be behind
        missed = (
            one
            for one in self.of((pod.metadata.namespace, identifier))
            if one.may_be_continued
            and one.spec.pod_ref.uid != pod.metadata.uid
            and index in {None, one.spec.identity.index}
            and (one.began_at or 0.0) <= came
        )
        return max(missed, key=lambda one: inf if one.snapshot is None else one.snapshot.generation, default=None)

    def was_saved(self, pod_uid: str, identity: Identity, before: float) -> bool:
        """Whether a snapshot of this very pod was committed before that time (seconds since the epoch)."""
        return any(
            one.spec.pod_ref.uid == pod_uid and one.snapshot is not None and (one.committed_at or before) < before
            for one in self.of((identity.namespace, identity.id))
        )
