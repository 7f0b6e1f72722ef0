"""Who controls a pod: owns its Checkpoints where their id is a Job's own, and shows what its people should read."""

from __future__ import annotations

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Metadata, Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef


class Owners:
    """Of the pods of a mirror, which must be synced before it is asked."""

    def __init__(self, pods: Mirror[Pod]) -> None:
        self._pods = pods

    def of(self, workload: WorkloadRef) -> list[Object]:
        """`ownerReferences` for what describes snapshots of this pod; none where others may continue from them, too.

        They do not block their owner's deletion: that would need rights on whatever controls pods.
        """
        pod = self._pods.get(workload.name, workload.namespace)
        if pod is None or pod.metadata.uid != workload.uid or pod.metadata.annotations.get(names.DERIVED) != "true":
            return []
        if (owner := pod.metadata.owner) is None:
            return []
        return [{"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}]


def pod_and_owner(metadata: Metadata) -> list[dict[str, str]]:
    """References to a pod and to who controls it, for an Event that both are to show."""
    found = [PODS.reference(metadata.name, metadata.namespace, metadata.uid)]
    if (owner := metadata.owner) is not None:
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        found.append(reference | {"namespace": metadata.namespace})
    return found
