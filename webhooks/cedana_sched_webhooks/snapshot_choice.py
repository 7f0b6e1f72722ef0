"""The snapshot that a new pod restores."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.identity import Replica

_SHOWN = 100
"""Characters of a malformed snapshot name that an error shows."""


class Continuation(msgspec.Struct, frozen=True):
    """Snapshot to restore; `generation` is None while the snapshot is in flight, `source` if no Checkpoint is cached.

    `any_of_id`: any unclaimed snapshot of the id; the coordinator chooses.
    """

    replica: Replica
    generation: int | None
    source: Checkpoint | None = None
    any_of_id: bool = False

    def __str__(self) -> str:
        if self.any_of_id:
            return names.any_snapshot_restore_identity(self.replica.id)
        return str(self.replica) if self.generation is None else f"{self.replica}@{self.generation}"


def newest_continuation_of(namespace: str, replica: Replica, caches: AdmissionCaches) -> Continuation | None:
    """Return the snapshot in flight if there is one, else the newest; None for a first start."""
    checkpoints = caches.checkpoints_of(namespace, replica.id, replica.index)
    if flying := next((one for one in checkpoints if one.in_flight), None):
        return Continuation(replica, None, flying)
    newest = max(checkpoints, key=lambda one: one.restorable_generation or 0, default=None)
    if newest is None or newest.restorable_generation is None:
        return None
    return Continuation(replica, newest.restorable_generation, newest)


def continuation_for_any_replica(namespace: str, replica: Replica, caches: AdmissionCaches) -> Continuation | None:
    """Return `any_of_id` for one of several indistinguishable pods; None if the id has no snapshot or checkpoint."""
    checkpoints = caches.checkpoints_of_id(namespace, replica.id)
    some = any(one.in_flight or one.restorable_generation is not None for one in checkpoints)
    return Continuation(replica, None, any_of_id=True) if some else None


def requested_snapshot_of(namespace: str, annotations: Mapping[str, str]) -> SnapshotRef | None:
    """Return the snapshot of this namespace that the user chose for a pod; None: the newest.

    Raises:
        UsageError: the annotation names no snapshot.
    """
    if not (text := annotations.get(names.RESTORE_FROM)):
        return None
    try:
        return SnapshotRef.parse(f"{namespace}/{text}")
    except UsageError as error:
        remedy = "write id/index@generation, as 'kubectl get checkpoints' shows it"
        shown = text[:_SHOWN]
        raise UsageError(
            f"metadata.annotations[{names.RESTORE_FROM}]", shown, "names no snapshot", remedy=remedy
        ) from error


def expect_snapshot_error(annotations: Mapping[str, str]) -> UsageError | None:
    """Return what is wrong with the annotation that expects a snapshot; None if it is absent, or counts as written."""
    text = annotations.get(names.EXPECT_SNAPSHOT)
    if text is None or text in {"true", "false"}:
        return None
    problem = "expects no snapshot: one that another cluster took is not looked for"
    return UsageError(
        f"metadata.annotations[{names.EXPECT_SNAPSHOT}]", text[:_SHOWN], problem, remedy="write 'true', or remove it"
    )


def continuation_from_snapshot(snapshot: SnapshotRef, caches: AdmissionCaches) -> Continuation:
    """Return the continuation for a snapshot chosen by the user, in the pod's own namespace."""
    namespace = snapshot.identity.namespace
    replica = Replica(snapshot.identity.id, snapshot.identity.index)
    known = caches.checkpoints_of(namespace, replica.id, replica.index)
    source = next((one for one in known if one.restorable_generation == snapshot.generation), None)
    return Continuation(replica, snapshot.generation, source)
