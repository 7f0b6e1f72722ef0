"""What has deleted a pod of Volcano's, if the scheduler has not preempted it.

Volcano's job controller (1.14, pkg/controllers/job) deletes pods in three cases. If a policy or a command ends or
restarts the job, a task or a pod, it first writes `OUT_OF_SYNC` on each pod. If a task has fewer replicas than before,
it deletes those with the highest indices. If the vcjob is deleted, the garbage collector deletes its pods. It creates
any other deleted pod anew, under its name, unless a policy acts on the end of an evicted pod.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.adapter.deletion_answers import DeletionCause
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Api
from cedana_sched.model.policy import OnFinalDeletion
from cedana_sched_volcano.objects import TASK, TASK_INDEX, VCJOBS
from cedana_sched_volcano.vcjob_policies import acts_on_evicted_pod, has_replica

OUT_OF_SYNC: Final = register_cached_key("volcano.sh/controller-out-of-sync")
"""Annotation of a pod that the job controller deletes to end or restart it (helpers.OutOfSyncKey)."""

_GOING_ON: Final = frozenset({"", "Pending", "Running"})
"""Phases of a vcjob that creates missing pods."""


class _State(msgspec.Struct, frozen=True):
    phase: str = ""


class _Status(msgspec.Struct, frozen=True):
    state: _State = _State()


class _Vcjob(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] = {}
    status: _Status = _Status()


async def find_deletion_cause(api: Api, policies: Policies, pod: Pod) -> DeletionCause:
    """Return what has deleted a pod that Volcano's scheduler has not preempted.

    Raises:
        ApiError: its vcjob cannot be read now.
    """
    if OUT_OF_SYNC in pod.metadata.annotations:
        return DeletionCause.CONTROLLER
    owner = pod.metadata.controller_reference
    if owner is None or (owner.api_version, owner.kind) != (VCJOBS.group_version, VCJOBS.kind):
        return DeletionCause.OTHER
    job = await api.find(VCJOBS, owner.name, pod.metadata.namespace, into=_Vcjob)
    if job is None or not _is_replacing(job, owner, pod):
        saves = policies.policy_of_pod(pod).on_final_deletion is OnFinalDeletion.SAVE
        return DeletionCause.OTHER if saves else DeletionCause.CONTROLLER
    return DeletionCause.CONTROLLER if acts_on_evicted_pod(job.spec) else DeletionCause.OTHER


def _is_replacing(job: _Vcjob, owner: OwnerReference, pod: Pod) -> bool:
    """Return whether the vcjob is the pod's, is not over, and still has a replica of the pod's task and index."""
    if job.metadata.uid != owner.uid or job.metadata.deletion_timestamp is not None:
        return False
    labels = pod.metadata.labels
    index = labels.get(TASK_INDEX) or pod.metadata.name.rpartition("-")[2]
    return job.status.state.phase in _GOING_ON and has_replica(job.spec, labels.get(TASK, ""), index)
