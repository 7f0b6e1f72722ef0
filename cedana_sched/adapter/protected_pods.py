"""Converts protected pods, as annotated by the webhook, to model types."""

from __future__ import annotations

import structlog

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, is_namespace_uid, read_index
from cedana_sched.model.objects import names
from cedana_sched.model.objects.node_interruption import left_out_mark
from cedana_sched.model.preemption import Victim, WorkloadRef

log = structlog.get_logger(__name__)


def workload_of(pod: Pod) -> WorkloadRef:
    """Return the reference of a pod in the coordinator's records."""
    metadata = pod.metadata
    return WorkloadRef(metadata.uid, metadata.namespace, metadata.name, pod.spec.node_name, namespace_uid_of(pod))


def namespace_uid_of(pod: Pod) -> str:
    """Return the namespace uid that the webhook wrote on a protected pod; empty if absent or invalid."""
    uid = pod.metadata.annotations.get(names.NAMESPACE_UID, "")
    return uid if is_namespace_uid(uid) else ""


def identity_of(pod: Pod) -> Identity:
    """Return the identity that the webhook wrote on a protected pod.

    Raises:
        KeyError: the pod is not protected.
        UsageError: another writer has changed the annotations.
    """
    annotations = pod.metadata.annotations
    index = read_index(f"metadata.annotations[{names.INDEX}]", annotations.get(names.INDEX, "0"))
    return Identity(pod.metadata.namespace, annotations[names.ID], index)


def build_victim(pod: Pod, policies: Policies, gang: str | None = None) -> Victim | None:
    """Return a protected pod as a victim; None, and logged, if another writer has changed its annotations."""
    metadata = pod.metadata
    try:
        identity = identity_of(pod)
    except (KeyError, UsageError, ValueError) as error:
        log.warning("pod is not saved", namespace=metadata.namespace, pod=metadata.name, error=str(error))
        return None
    policy = policies.policy_of_pod(pod)
    return Victim(workload_of(pod), identity, policy, gang, started_at=pod.status.started_at)


async def mark_not_preempted(api: Api, pod: Pod) -> None:
    """Mark a pod with `names.CONFIRM_DELETION` as not preempted. Idempotent.

    Raises:
        ApiError: the write failed.
    """
    await _annotate_not_preempted(api, pod, "true")


async def mark_left_out(api: Api, pod: Pod, notice: str) -> None:
    """Mark a pod as not saved from the shutdown of its node with this key: its preStop hook does not wait. Idempotent.

    The mark is void once the node has no such notice: the pod may outlive a shutdown.

    Raises:
        ApiError: the write failed.
    """
    await _annotate_not_preempted(api, pod, left_out_mark(notice))


async def hand_over_deletion(api: Api, pod: Pod) -> None:
    """Mark a pod with `names.CONFIRM_DELETION` as not preempted by its scheduler; its preStop hook waits on.

    Idempotent.

    Raises:
        ApiError: the write failed.
    """
    if pod.metadata.annotations.get(names.NOT_PREEMPTED) != "true":
        await _annotate_not_preempted(api, pod, names.NOT_BY_SCHEDULER)


async def _annotate_not_preempted(api: Api, pod: Pod, value: str) -> None:
    if pod.metadata.annotations.get(names.NOT_PREEMPTED) != value:
        await patch_same(api, PODS, pod.metadata, {"metadata": {"annotations": {names.NOT_PREEMPTED: value}}})


def find_identity(pod: Pod) -> Identity | None:
    """Return a pod's identity; None if the pod is not protected, or another writer has changed the annotations."""
    try:
        return identity_of(pod)
    except (KeyError, UsageError):
        return None
