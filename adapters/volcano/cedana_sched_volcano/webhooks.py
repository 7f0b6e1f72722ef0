"""Volcano's admission handlers: queues that protect their pods, and policies that turn a preemption into a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Final, Self

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched_volcano.objects import POD_GROUPS, QUEUES, PodGroup
from cedana_sched_volcano.pod_queues import PodQueueResolver
from cedana_sched_volcano.queue_opt_in import QueueOptIn
from cedana_sched_volcano.vcjob_admission import VCJOB, VcjobAdmission
from cedana_sched_webhooks.admission_types import UNMARKED_POD
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks

PODS: Final = "/volcano/pods"
JOBS: Final = "/volcano/jobs"


class VolcanoWebhooks(SchedulerWebhooks):
    """Caches Queues and PodGroups."""

    name: ClassVar[str] = "volcano"

    def __init__(self, replica: ReplicaAccess) -> None:
        api, served = replica.api, replica.served
        self._queues = Informer(Watch(api, QUEUES, PartialObject))
        self._groups = Informer(Watch(api, POD_GROUPS, PodGroup, within=served))
        self._opt_in = QueueOptIn(PodQueueResolver(self._queues.get, self._groups.get), served)
        self._jobs = VcjobAdmission(self._queues.get)

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        return cls(replica)

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {
            PODS: Endpoint(self._opt_in.answer_pod_admission, UNMARKED_POD),
            JOBS: Endpoint(self._jobs.answer, VCJOB),
        }

    async def run(self) -> None:
        """See `SchedulerWebhooks`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queues.run(), name="Queues")
            group.create_task(self._groups.run(), name="PodGroups")
