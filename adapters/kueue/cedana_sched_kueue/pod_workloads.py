"""Workloads of pods, which Kueue stops one by one: single pods, also those of Deployments, and groups.

A group is what has one name (`kueue.x-k8s.io/pod-group-name`): plain pods, the pods of a StatefulSet, or those of one
group of a LeaderWorkerSet. Its Workload has that name, and no controller. The Workload of a single pod is controlled by
the pod. There is no object to suspend, so the Workload itself stands for one: it is suspended once no pod of it runs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.adapter.mark_removal import is_running
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched_kueue.managed_kinds import is_of_kind
from cedana_sched_kueue.managed_objects import ManagedObject, own_uid
from cedana_sched_kueue.objects import Workload
from cedana_sched_kueue.workload_choice import workloads_of_object

GROUP_NAME: Final = register_cached_key("kueue.x-k8s.io/pod-group-name")
"""Label of the pods of a group; also an annotation (gate `WorkloadIdentifierAnnotations`), which comes first."""


class PodWorkloads:
    """Finds the Workload of a protected pod, and the pods of a Workload.

    Args:
        workloads: all of the cluster.
        by_owner: the same by the uid of their controller, a pod among others.
        pods: protected ones.
    """

    def __init__(self, workloads: Informer[Workload], by_owner: Index[str, Workload], pods: Informer[Pod]) -> None:
        self._workloads = workloads
        self._by_owner = by_owner
        self._by_uid = Index(own_uid, workloads)
        self._single = Index(own_uid, pods)
        self._grouped = Index(_group_key_of, pods)

    def workload_of(self, pod: Pod) -> Workload | None:
        """Return the Workload of a pod that Kueue stops by itself; None if it has none, or Kueue suspends an object."""
        if (key := _group_key_of(pod)) is not None:
            found = self._workloads.get(key[1], key[0])
            return found if found is not None and found.metadata.controller_reference is None else None
        owned = workloads_of_object(pod.metadata, self._by_owner.objects_of(pod.metadata.uid), PODS)
        return next(iter(owned), None)

    def find(self, uid: str) -> Workload | None:
        """Return the Workload of this uid if it is one of pods that are known."""
        workload = self._by_uid.unique_object_of(uid)
        return workload if workload is not None and self.pods_of(workload) else None

    def pods_of(self, workload: Workload) -> list[Pod]:
        """Return the protected pods that Kueue counts as the Workload's."""
        metadata, owner = workload.metadata, workload.metadata.controller_reference
        if owner is None:
            return list(self._grouped.objects_of((metadata.namespace, metadata.name)))
        if not is_of_kind(owner, PODS):
            return []
        return [pod for pod in self._single.objects_of(owner.uid) if self.workload_of(pod) == workload]

    def as_object(self, workload: Workload) -> ManagedObject:
        """Return the Workload as the object that Kueue stops; its release is what all running pods say alike."""
        running = [pod for pod in self.pods_of(workload) if is_running(pod)]
        releases = {pod.metadata.annotations.get(names.RELEASED_HOLD) for pod in running}
        (release,) = releases if len(releases) == 1 else (None,)
        annotations = {} if release is None else {names.RELEASED_HOLD: release}
        metadata = msgspec.structs.replace(workload.metadata, annotations=annotations)
        return ManagedObject(metadata, suspended=not running, names_identity=True)


def _group_key_of(pod: Pod) -> tuple[str, str] | None:
    """Return namespace and name of a pod's group."""
    metadata = pod.metadata
    name = metadata.annotations.get(GROUP_NAME) or metadata.labels.get(GROUP_NAME)
    return (metadata.namespace, name) if name else None
