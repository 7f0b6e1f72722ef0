"""Indices of the Checkpoints of the cluster: both tracked and archived ones."""

from __future__ import annotations

from math import inf

from cedana_sched.coordinator.core.user_events import format_short_name
from cedana_sched.kube.builtin_kinds import Pod, read_time
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, SnapshotRef, may_be_same_namespace
from cedana_sched.model.preemption import INTERVAL
from cedana_sched.model.records import CheckpointStep

CLOCK_STEP_SECONDS = 1.0
"""Kubernetes writes times in whole seconds."""
EVICTION_FOLLOWS_SECONDS = 120.0
"""How long after its commit a saved pod is evicted at the latest."""


def describe_missed_checkpoint(missed: KnownCheckpoint) -> str:
    """Describe a checkpoint that was not restored: its name, and whether its snapshot existed already."""
    if (snapshot := missed.snapshot) is not None:
        return f"{format_short_name(snapshot)}, which was there"
    return f"{format_short_name(missed.identity)}, which is still being made"


class CheckpointsBySnapshot(Index[SnapshotRef, KnownCheckpoint]):
    """Checkpoints by the snapshot that they describe: usually one, but concurrent preemptions share theirs."""

    def __init__(self, checkpoints: Informer[KnownCheckpoint]) -> None:
        super().__init__(lambda one: one.snapshot, checkpoints)

    def manifest_digest_of(self, snapshot: SnapshotRef) -> str:
        """Return the digest of its manifest; empty if no Checkpoint has it."""
        return next((one.manifest_digest for one in self.objects_of(snapshot) if one.manifest_digest), "")


class CheckpointsById(Index[tuple[str, str], KnownCheckpoint]):
    """Checkpoints by namespace and id, of all replicas. Implements `adapter.cluster_contract.Snapshots`."""

    def __init__(self, checkpoints: Informer[KnownCheckpoint]) -> None:
        super().__init__(lambda one: (one.metadata.namespace, one.spec.identity.id), checkpoints)
        self.of_identity: Index[Identity, KnownCheckpoint] = Index(lambda one: one.identity, checkpoints)
        self.synced = checkpoints.synced
        self.informer = checkpoints

    def has_checkpoint_of_id(self, identity: Identity) -> bool:
        """Whether a Checkpoint of any replica of its id exists, including failed ones and those in flight."""
        return next(iter(self.objects_of((identity.namespace, identity.id))), None) is not None

    def has_checkpoint_for_deletion(self, pod: Pod, identity: Identity) -> bool:
        """Whether a Checkpoint of this very pod explains its deletion: it is in flight, or ended shortly before.

        A periodic one never does, nor one of an earlier eviction.
        """
        deleted_at = pod.metadata.deletion_began_at or 0.0
        return any(
            one.spec.pod_ref.uid == pod.metadata.uid
            and one.spec.reason != INTERVAL
            and (
                one.in_flight
                or (one.began_at or 0.0) >= deleted_at - CLOCK_STEP_SECONDS
                or (one.committed_at or 0.0) >= deleted_at - EVICTION_FOLLOWS_SECONDS
            )
            for one in self.of_identity.objects_of(identity)
        )

    def newest_ready_checkpoint_of(self, identity: Identity, namespace_uid: str = "") -> KnownCheckpoint | None:
        """Return the Checkpoint of the newest snapshot; None if there is none.

        `namespace_uid`: of the namespace whose snapshots are meant; empty: any namespace of the name.
        """
        ready = (
            one
            for one in self.of_identity.objects_of(identity)
            if one.status.step is CheckpointStep.READY
            and one.snapshot is not None
            and may_be_same_namespace(one.spec.namespace_uid, namespace_uid)
        )
        return max(ready, key=lambda one: one.snapshot.generation if one.snapshot is not None else 0, default=None)

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[SnapshotRef, ...]:
        """See `adapter.cluster_contract.Snapshots`."""
        ready = (one for one in self.objects_of((namespace, identifier)) if one.status.step is CheckpointStep.READY)
        return tuple(one.snapshot for one in ready if one.snapshot is not None and not one.is_deleted)

    def snapshots_run_on(self, identity: Identity, namespace_uid: str) -> tuple[SnapshotRef, ...]:
        """Return the identity's snapshots after which its program may have executed, tracked and archived ones."""
        return tuple(
            ref
            for one in self.of_identity.objects_of(identity)
            if (ref := one.snapshot) is not None
            and one.has_run_on
            and may_be_same_namespace(one.spec.namespace_uid, namespace_uid)
        )

    def newest_checkpoint_missed_by(
        self, pod: Pod, identifier: str, index: int | None = None
    ) -> KnownCheckpoint | None:
        """Return the newest checkpoint that a cold-started pod could have restored; in flight it has no snapshot yet.

        Only checkpoints of other pods that began before this pod got its node. `index`: None for any replica's.
        """
        created, started = read_time(pod.metadata.creation_timestamp), pod.status.started_at
        came = inf if started is None else max(started, created or started)  # of two clocks, one may be behind
        missed = (
            one
            for one in self.objects_of((pod.metadata.namespace, identifier))
            if one.has_possible_snapshot
            and one.spec.pod_ref.uid != pod.metadata.uid
            and index in {None, one.spec.identity.index}
            and (one.began_at or 0.0) <= came
        )
        return max(missed, key=lambda one: inf if one.snapshot is None else one.snapshot.generation, default=None)

    def has_pod_snapshot_before(self, pod_uid: str, identity: Identity, before: float) -> bool:
        """Whether a snapshot of this very pod was committed before that time (seconds since the epoch)."""
        return any(
            one.spec.pod_ref.uid == pod_uid and one.snapshot is not None and (one.committed_at or before) < before
            for one in self.of_identity.objects_of(identity)
        )
