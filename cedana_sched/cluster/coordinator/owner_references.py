"""What Checkpoints get from their pods: owner references if the id is a Job's own, and marks. References for Events."""

from __future__ import annotations

from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import HeldObject, WorkloadRef

LONGEST_MARK = 512
"""Characters; a pod's author may have written another mark than our webhook."""


class OwnerReferences:
    """Resolves ownerReferences and annotations of Checkpoints; `pods` must have synced."""

    def __init__(self, pods: Informer[Pod]) -> None:
        self._pods = pods

    def owner_references_for(self, workload: WorkloadRef) -> list[Object]:
        """Return `ownerReferences` for snapshot objects of this pod; none if other owners' pods may restore them.

        They do not block the owner's deletion: that would require permissions on every kind of pod controller.
        """
        pod = self._find_pod(workload)
        if pod is None or pod.metadata.annotations.get(names.DERIVED_ID) != "true":
            return []
        return [_reference_fields(owner)] if (owner := pod.metadata.controller_reference) is not None else []

    def marks_for(self, workload: WorkloadRef) -> dict[str, str]:
        """Return the annotations for snapshot objects of this pod, by which the webhook prepares its successor."""
        pod = self._find_pod(workload)
        mark = pod.metadata.annotations.get(names.SECCOMP_DEFAULTED) if pod is not None else None
        return {names.SECCOMP_DEFAULTED: mark[:LONGEST_MARK]} if mark else {}

    def _find_pod(self, workload: WorkloadRef) -> Pod | None:
        pod = self._pods.get(workload.name, workload.namespace)
        return pod if pod is not None and pod.metadata.uid == workload.uid else None


def owner_reference(metadata: Metadata) -> dict[str, str] | None:
    """Return an ObjectReference to an object's controller, for an Event; None if it has none."""
    if (owner := metadata.controller_reference) is None:
        return None
    return _reference_fields(owner) | {"namespace": metadata.namespace}


def held_reference(held: HeldObject) -> dict[str, str]:
    """Return an ObjectReference to the object by which a scheduler evicts, for an Event."""
    return _reference_fields(held) | {"namespace": held.namespace}


def warn_pod_and_owner(events: EventRecorder, metadata: Metadata, reason: str, text: str) -> None:
    """Publish a warning on a pod and on its controller."""
    owner = owner_reference(metadata)
    for one in (PODS.reference(metadata.name, metadata.namespace, metadata.uid), *([owner] if owner else ())):
        events.record_event(ObjectEvent(one, reason, text, warning=True))


def warn_not_protected(events: EventRecorder, metadata: Metadata, why: str) -> None:
    """Publish that a pod runs without protection; `why` is a clause."""
    warn_pod_and_owner(events, metadata, "NotProtected", f"{metadata.name} is not protected: {why}")


def _reference_fields(one: OwnerReference | HeldObject) -> dict[str, str]:
    return {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
