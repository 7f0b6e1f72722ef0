"""Who controls a pod: owns its Checkpoints where their id is a Job's own, and shows what its people should read."""

from __future__ import annotations

from cedana_sched.kube.client import Object
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.objects import Metadata, OwnerReference, Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import HeldObject, WorkloadRef


class Owners:
    """Of the pods of a mirror, which must be synced before `of` is called."""

    def __init__(self, pods: Informer[Pod]) -> None:
        self._pods = pods

    def of(self, workload: WorkloadRef) -> list[Object]:
        """`ownerReferences` for what describes snapshots of this pod; none where others may continue from them, too.

        They do not block their owner's deletion: that would need rights on whatever controls pods.
        """
        pod = self._pods.get(workload.name, workload.namespace)
        if pod is None or pod.metadata.uid != workload.uid or pod.metadata.annotations.get(names.DERIVED_ID) != "true":
            return []
        return [_named(owner)] if (owner := pod.metadata.owner) is not None else []


def owner_reference(metadata: Metadata) -> dict[str, str] | None:
    """An ObjectReference to who controls an object, for an Event; None: nobody does."""
    if (owner := metadata.owner) is None:
        return None
    return _named(owner) | {"namespace": metadata.namespace}


def held_reference(held: HeldObject) -> dict[str, str]:
    """An ObjectReference to the object by which a scheduler evicts, for an Event."""
    return _named(held) | {"namespace": held.namespace}


def warn_pod_and_owner(events: EventRecorder, metadata: Metadata, reason: str, text: str) -> None:
    """Publish a warning on a pod and on who controls it."""
    owner = owner_reference(metadata)
    for one in (PODS.reference(metadata.name, metadata.namespace, metadata.uid), *([owner] if owner else ())):
        events.tell(ObjectEvent(one, reason, text, warning=True))


def warn_not_protected(events: EventRecorder, metadata: Metadata, why: str) -> None:
    """Publish that a pod runs without protection; `why` is a clause."""
    warn_pod_and_owner(events, metadata, "NotProtected", f"{metadata.name} is not protected: {why}")


def _named(one: OwnerReference | HeldObject) -> dict[str, str]:
    return {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
