"""Whether a deleted pod will have a successor that continues its work, or is deleted for good.

A controller replaces a pod that a person or another program deletes. A pod that its own controller no longer wants is
deleted for good: its Job has ended, its set is scaled down or rolled out, or the controller itself is deleted. A pod
without a controller has no successor either.
"""

from __future__ import annotations

from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, PartialObject, Pod, read_time
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import JOBS, NAMESPACES, PODS, UNFINISHED_PODS
from cedana_sched.model.pod_indexing import POD_INDEX, REVISION
from cedana_sched_kubernetes.objects import REPLICA_SETS, STATEFUL_SETS, Job, ReplicaSet, StatefulSet


async def has_successor(api: Api, pod: Pod) -> bool:
    """Return whether the pod's controller replaces it; True also for controllers of unknown kinds.

    Raises:
        ApiError: the controller cannot be read now.
    """
    owner = pod.metadata.controller_reference
    if owner is None or await _is_namespace_ending(api, pod):
        return False
    kind = (owner.api_version, owner.kind)
    if kind == (JOBS.group_version, JOBS.kind):
        return await _is_continued_by_job(api, pod, owner)
    if kind == (STATEFUL_SETS.group_version, STATEFUL_SETS.kind):
        return await _is_in_stateful_set(api, pod, owner)
    if kind == (REPLICA_SETS.group_version, REPLICA_SETS.kind):
        return await _is_missing_in_replica_set(api, pod, owner)
    return True


async def _is_namespace_ending(api: Api, pod: Pod) -> bool:
    found = await api.find(NAMESPACES, pod.metadata.namespace, into=PartialObject)
    return found is None or found.metadata.deletion_timestamp is not None


async def _is_continued_by_job(api: Api, pod: Pod, owner: OwnerReference) -> bool:
    """Return whether the Job continues; a suspended one does so later."""
    job = await api.find(JOBS, owner.name, pod.metadata.namespace, into=Job)
    return job is not None and _is_owner(job.metadata, owner) and not job.ends


async def _is_in_stateful_set(api: Api, pod: Pod, owner: OwnerReference) -> bool:
    """Return whether the set has the pod's ordinal, and does not replace the pod by one of another template."""
    found = await api.find(STATEFUL_SETS, owner.name, pod.metadata.namespace, into=StatefulSet)
    if found is None or not _is_owner(found.metadata, owner):
        return False
    labels, first = pod.metadata.labels, found.spec.ordinals.start if found.spec.ordinals is not None else 0
    ordinal = labels.get(POD_INDEX) or pod.metadata.name.rpartition("-")[2]
    if not ordinal.isdecimal() or not first <= int(ordinal) < first + found.spec.replicas:
        return False
    revisions = {"", found.status.update_revision}
    if int(ordinal) < found.spec.partition:
        revisions.add(found.status.current_revision)
    return labels.get(REVISION, "") in revisions


async def _is_missing_in_replica_set(api: Api, pod: Pod, owner: OwnerReference) -> bool:
    """Return whether the set wants more pods than it had without this one when this one was deleted."""
    found = await api.find(REPLICA_SETS, owner.name, pod.metadata.namespace, into=ReplicaSet)
    if found is None or not _is_owner(found.metadata, owner):
        return False
    labels = (found.spec.selector or {}).get("matchLabels") or {}
    query = {"fieldSelector": UNFINISHED_PODS, "labelSelector": ",".join(f"{key}={labels[key]}" for key in labels)}
    pods, _ = await api.list_all(PODS, pod.metadata.namespace, query, into=PartialObject)
    deleted_at = pod.metadata.deletion_began_at or 0.0
    others = sum(_is_older_sibling(one.metadata, owner, deleted_at) for one in pods)
    return others < found.spec.replicas


def _is_older_sibling(metadata: Metadata, owner: OwnerReference, deleted_at: float) -> bool:
    """Return whether this is another pod of the owner that was there before; a younger one is the replacement."""
    controller = metadata.controller_reference
    if controller is None or controller.uid != owner.uid or metadata.deletion_timestamp is not None:
        return False
    created_at = read_time(metadata.creation_timestamp)  # whole seconds, as the time of the deletion
    return created_at is not None and created_at < deleted_at


def _is_owner(found: Metadata, owner: OwnerReference) -> bool:
    """Return whether this is the owner, and not being deleted itself."""
    return found.uid == owner.uid and found.deletion_timestamp is None
