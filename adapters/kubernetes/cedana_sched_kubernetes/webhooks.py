"""Kubernetes' part of the webhooks: evictions that are held, pods that an admin protects, Jobs' accounting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self, TypedDict

from cedana_sched.adapter.settings import read_section
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, NAMESPACES
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched_kubernetes.admin_opt_in import AdminOptIn
from cedana_sched_kubernetes.disruption_hold import DisruptionHold
from cedana_sched_kubernetes.job_admission import JobAdmission
from cedana_sched_kubernetes.objects import Namespace
from cedana_sched_kubernetes.policy_selectors import PolicySelectors
from cedana_sched_kubernetes.settings import Settings
from cedana_sched_webhooks.admission import WHOLE, Shape
from cedana_sched_webhooks.admission_types import (
    UNMARKED_POD,
    Metadata,
    MetadataOfRunning,
    NamedContainer,
    StatusOfRunning,
)
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks

PODS: Final = "/kubernetes/pods"
JOBS: Final = ("/kubernetes/jobs", "/kubernetes/named-jobs")
"""Two webhooks, because the conditions of one cannot read the labels of the namespace."""
EVICTIONS: Final = "/kubernetes/evictions"
STATUSES: Final = "/kubernetes/statuses"


class _TemplateSpec(TypedDict, total=False):
    containers: list[NamedContainer] | None
    restartPolicy: str | None
    schedulerName: str | None


class _Template(TypedDict, total=False):
    metadata: Metadata | None
    spec: _TemplateSpec | None


class _JobSpec(TypedDict, total=False):
    template: _Template | None
    podFailurePolicy: dict[str, Any] | None


class _Job(TypedDict, total=False):
    metadata: Metadata | None
    spec: _JobSpec | None


class _PodSpec(TypedDict, total=False):
    nodeName: str | None


class _Pod(TypedDict, total=False):
    metadata: MetadataOfRunning
    spec: _PodSpec | None
    status: StatusOfRunning | None


JOB: Final = Shape(_Job)
"""A Job at CREATE."""
POD: Final = Shape(_Pod, _Pod, large=(_Pod, _Pod))
"""A pod whose status the taint controller writes."""


class KubernetesWebhooks(SchedulerWebhooks):
    """Caches Namespaces and policies, and records evictions on pods."""

    name: ClassVar[str] = "kubernetes"

    def __init__(self, replica: ReplicaAccess) -> None:
        settings = read_section(self.name, Settings, replica.settings)
        self._namespaces = Informer(Watch(replica.api, NAMESPACES, Namespace, only_metadata=True))
        selectors = PolicySelectors(self._namespaces.get)
        self._policies: Informer[CachedPolicy] | None = None
        if settings.pod_selectors:
            self._policies = Informer(Watch(replica.api, CHECKPOINT_POLICIES, CachedPolicy))
            self._policies.subscribe(selectors.on_policy_change)
        self._marker = EvictionMarker(replica.api, replica.now, names.DISRUPTION_REQUESTED)
        self._opt_in = AdminOptIn(self._namespaces.get, selectors, settings, replica.served)
        self._jobs = JobAdmission(self._opt_in.is_job_protected)
        self._holds = DisruptionHold(replica, self._marker)

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        return cls(replica)

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {
            PODS: Endpoint(self._opt_in.answer_pod_admission, UNMARKED_POD),
            **dict.fromkeys(JOBS, Endpoint(self._jobs.answer, JOB)),
            EVICTIONS: Endpoint(self._holds.answer_eviction, WHOLE),
            STATUSES: Endpoint(self._holds.answer_status, POD),
        }

    async def run(self) -> None:
        """See `SchedulerWebhooks`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._namespaces.run(), name="Namespaces")
            if self._policies is not None:
                group.create_task(self._policies.run(), name="CheckpointPolicies")
            group.create_task(self._marker.run(), name="disruption marks")
