"""Mirrors that are filled by hand."""

from __future__ import annotations

from typing import Any, cast

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import NamedPod, OrderedObject, OrderedSpec, OrderedStatus
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import SnapshotRef


class SavedSnapshots:
    """These can be continued."""

    def __init__(self, *refs: SnapshotRef) -> None:
        self._refs = refs

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[SnapshotRef, ...]:
        return tuple(r for r in self._refs if (r.identity.namespace, r.identity.id) == (namespace, identifier))


class _Silent:
    """A watch that tells nothing."""


def filled(*objects: Any) -> Informer[Any]:
    informer: Informer[Any] = Informer(cast("Any", _Silent()))
    informer._replace(objects)
    return informer


def known_checkpoints(*checkpoints: KnownCheckpoint) -> CheckpointsById:
    """No others come."""
    informer = filled(*checkpoints)
    informer.synced.set()
    return CheckpointsById(informer)


def shown_restore(
    pod: str, uid: str, beginning: int = 0, replaced_by: str | None = None, running_at: str | None = None
) -> OrderedObject:
    """The Restore of a pod's beginning, as the coordinator sees it."""
    metadata = Metadata(f"restore-{pod}-{beginning}", "bio", f"{uid}.{beginning}", resource_version=replaced_by or "1")
    status = OrderedStatus(incarnation=beginning, replaced_by=replaced_by, start_time=running_at)
    return OrderedObject(metadata, OrderedSpec(f"restore.{uid}.{beginning}", NamedPod(uid, name=pod)), status)


def known_beginnings(*restores: OrderedObject) -> IncarnationNumbers:
    """What these Restores tell of beginnings; no others come."""
    informer = filled(*restores)
    informer.synced.set()
    return IncarnationNumbers(informer)
