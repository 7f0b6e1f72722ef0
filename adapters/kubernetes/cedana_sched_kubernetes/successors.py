"""Whether a pod that is being deleted has a successor that continues its work.

A controller replaces a pod that a person or another program deletes. A pod that its own controller no longer wants is
deleted for good: its Job has ended, its set is scaled down or rolled out, or the controller itself is deleted. A pod
without a controller has no successor either.

Many pods of one ReplicaSet may be deleted at once, so its protected pods are counted as they change. Only those without
protection are read, of which there are seldom any.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, PartialObject, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import decoded
from cedana_sched.kube.resources import JOBS, NAMESPACES, PODS, UNFINISHED_PODS
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import POD_INDEX, REVISION
from cedana_sched_kubernetes.objects import REPLICA_SETS, STATEFUL_SETS, Job, ReplicaSet, StatefulSet
from cedana_sched_kubernetes.remaining_pod_counts import ControllerKey, RemainingPodCounts, creation_time_unless_deleted

log = structlog.get_logger(__name__)

ALL_PROTECTED_SECONDS: Final = 10.0
"""How long a ReplicaSet without unprotected pods counts as one. A pod that is added meanwhile is not counted: at worst
another one is saved in vain."""
READ_SECONDS: Final = 5.0
"""How long the unprotected pods of one ReplicaSet are read: deletions of other tenants' pods wait meanwhile."""


class Successors:
    """Decides it for one pod after the other.

    Args:
        api: reads controllers, and their pods without protection.
        protected: counts the protected pods.
    """

    def __init__(self, api: Api, protected: RemainingPodCounts) -> None:
        self._api = api
        self._protected = protected
        self._all_protected_until: dict[ControllerKey, float] = {}
        """Loop time, in the order of the reads."""

    async def has_successor(self, pod: Pod) -> bool:
        """Return whether the pod's controller replaces it; True also for controllers of unknown kinds.

        Raises:
            ApiError: the controller cannot be read now.
        """
        owner = pod.metadata.controller_reference
        if owner is None or await self._is_namespace_ending(pod):
            return False
        kind = (owner.api_version, owner.kind)
        if kind == (JOBS.group_version, JOBS.kind):
            return await self._is_continued_by_job(pod, owner)
        if kind == (STATEFUL_SETS.group_version, STATEFUL_SETS.kind):
            return await self._is_in_stateful_set(pod, owner)
        if kind == (REPLICA_SETS.group_version, REPLICA_SETS.kind):
            return await self._is_missing_in_replica_set(pod, owner)
        return True

    async def _is_namespace_ending(self, pod: Pod) -> bool:
        found = await self._api.find(NAMESPACES, pod.metadata.namespace, into=PartialObject)
        return found is None or found.metadata.deletion_timestamp is not None

    async def _is_continued_by_job(self, pod: Pod, owner: OwnerReference) -> bool:
        """Return whether the Job continues; a suspended one does so later."""
        job = await self._api.find(JOBS, owner.name, pod.metadata.namespace, into=Job)
        return job is not None and _is_owner(job.metadata, owner) and not job.ends

    async def _is_in_stateful_set(self, pod: Pod, owner: OwnerReference) -> bool:
        """Return whether the set has the pod's ordinal, and does not replace the pod by one of another template."""
        found = await self._api.find(STATEFUL_SETS, owner.name, pod.metadata.namespace, into=StatefulSet)
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

    async def _is_missing_in_replica_set(self, pod: Pod, owner: OwnerReference) -> bool:
        """Return whether the set wants more pods than it had without this one when this one was deleted."""
        found = await self._api.find(REPLICA_SETS, owner.name, pod.metadata.namespace, into=ReplicaSet)
        if found is None or not _is_owner(found.metadata, owner):
            return False
        controller, deleted_at = (pod.metadata.namespace, owner.uid), pod.metadata.deletion_began_at or 0.0
        others = self._protected.count_older(controller, deleted_at)
        if others >= found.spec.replicas:
            return False
        others += await self._count_older_unprotected(controller, found, deleted_at)
        return others < found.spec.replicas

    async def _count_older_unprotected(self, controller: ControllerKey, found: ReplicaSet, deleted_at: float) -> int:
        """Return how many unprotected pods of the set are older; without a request if there were none a moment ago.

        Tenants choose how many there are, and how large. So those of too many do not count: at worst the deleted pod is
        saved in vain.
        """
        now = asyncio.get_running_loop().time()
        while self._all_protected_until and (oldest := next(iter(self._all_protected_until.items())))[1] <= now:
            del self._all_protected_until[oldest[0]]
        if controller in self._all_protected_until:
            return 0
        labels = (found.spec.selector or {}).get("matchLabels") or {}
        terms = [*(f"{key}={value}" for key, value in labels.items()), f"{names.PROTECTED}!=true"]
        query = {"fieldSelector": UNFINISHED_PODS, "labelSelector": ",".join(terms)}
        has_any, older = False, 0

        def see(body: msgspec.Raw) -> None:
            nonlocal has_any, older
            metadata = decoded("GET pods", bytes(body), PartialObject).metadata
            if _is_controlled_by(metadata, controller[1]):
                has_any, older = True, older + _is_older(metadata, deleted_at)

        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._api.list_each(PODS, controller[0], query, see, only_metadata=True)
        except TimeoutError:
            log.warning(
                "unprotected pods not counted: too many", namespace=controller[0], controller=found.metadata.name
            )
            return 0
        if not has_any:
            self._all_protected_until.pop(controller, None)
            self._all_protected_until[controller] = now + ALL_PROTECTED_SECONDS
        return older


def _is_older(metadata: Metadata, deleted_at: float) -> bool:
    """Return whether the pod was there before, and is not deleted; a younger one is the replacement."""
    created_at = creation_time_unless_deleted(metadata)
    return created_at is not None and created_at < deleted_at


def _is_controlled_by(metadata: Metadata, uid: str) -> bool:
    return (controller := metadata.controller_reference) is not None and controller.uid == uid


def _is_owner(found: Metadata, owner: OwnerReference) -> bool:
    """Return whether this is the owner, and not being deleted itself."""
    return found.uid == owner.uid and found.deletion_timestamp is None
