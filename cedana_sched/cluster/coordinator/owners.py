"""Whose Checkpoints are: those of an id that is a Job's own are garbage once that Job is gone."""

from __future__ import annotations

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Pod
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
