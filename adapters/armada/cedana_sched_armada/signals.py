"""Conversion to the adapter contract: pods to members of a case, a case to a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.adapter.protected_pods import find_identity, namespace_uid_of
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.path_segment_validation import LONGEST_OBJECT_NAME
from cedana_sched.model.preemption import Signal, Victim, WorkloadRef
from cedana_sched_armada.job_of_pod import job_of, run_of
from cedana_sched_armada.ledger import Member, OpenPreemption

log = structlog.get_logger(__name__)

ADAPTER = "armada"


def signal_of(case: OpenPreemption, policies: Policies, find_pod: Callable[[Member], Pod | None]) -> Signal:
    """Return the case's signal, with the current policies of its pods.

    A pod that exists no more, as after a restart of the coordinator, has the policy that its annotation named.
    """
    return Signal(
        uid=case.uid,
        adapter=ADAPTER,
        victims=tuple(_victims(case, policies, find_pod)),
        reason=case.reason,
        observed_at=case.observed_at,
        preemptor=case.preemptor or None,
        not_after=case.not_after,
        release_group=case.preemptor or None,
    )


def _victims(case: OpenPreemption, policies: Policies, find_pod: Callable[[Member], Pod | None]) -> Iterable[Victim]:
    for member in case.members:
        if member.runs:
            pod = find_pod(member)
            yield Victim(
                workload=_workload_reference_of(member),
                identity=Identity(member.namespace, member.id, member.index),
                policy=policies.policy_of_pod(pod) if pod else policies.policy_named(member.policy, member.namespace),
                gang=case.gang.id if case.gang is not None else None,
                started_at=member.started_at,
            )


def _workload_reference_of(member: Member) -> WorkloadRef:
    return WorkloadRef(member.pod_uid, member.namespace, member.pod, member.node, member.namespace_uid)


def _truncate_policy_name(name: str | None) -> str | None:
    """Truncate names longer than Kubernetes allows to a length that stays invalid."""
    return None if name is None else name[: LONGEST_OBJECT_NAME + 1]


def member_from_pod(pod: Pod) -> Member | None:
    """Return the pod's member; None if another writer damaged our webhook's annotations."""
    identity = find_identity(pod)
    metadata = pod.metadata
    if identity is None:
        log.warning("pod is not saved: its identity cannot be read", namespace=metadata.namespace, pod=metadata.name)
        return None
    return Member(
        job=job_of(pod) or "",
        run=run_of(pod),
        namespace=identity.namespace,
        id=identity.id,
        index=identity.index,
        pod=metadata.name,
        pod_uid=metadata.uid,
        node=pod.spec.node_name,
        policy=_truncate_policy_name(metadata.annotations.get(names.POLICY)),
        started_at=pod.status.started_at,
        runs=pod.status.phase == "Running",
        namespace_uid=namespace_uid_of(pod),
    )
