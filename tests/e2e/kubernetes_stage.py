"""The real kube-scheduler as the conformance suite plays it: a node has one seat, and the more urgent pod takes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched_kubernetes.adapter import KubernetesAdapter
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.e2e.job_stage import job_of
from tests.e2e.pod_hold import PodHold
from tests.e2e.pod_hold_stage import GRACE_SECONDS, PodHoldStage
from tests.e2e.product.urgency import urgency
from tests.e2e.real_stage import UNTIL_TOLD, Mirrored

SCHEDULER: Final = "system:kube-scheduler"
_SEAT: Final = "tests.cluster/seat"
"""An extended resource: a pod that has it leaves no room, however large the node is."""


@dataclass(frozen=True)
class Seat:
    """What pods compete for.

    Args:
        urgent: a PriorityClass above the others.
    """

    urgent: str

    @classmethod
    @asynccontextmanager
    async def on_a_node(cls, cluster: Cluster, api: Api) -> AsyncIterator[Seat]:
        """One node has one seat."""
        node = min(cluster.nodes)
        async with (
            Namespace.created(cluster, api, "conformance-seat") as namespace,
            urgency(namespace) as urgent,
        ):
            await _offer(namespace, node, "1")
            try:
                yield cls(urgent)
            finally:
                await _offer(namespace, node, None)


class RealKubernetesStage(PodHoldStage):
    """Each job is a Job of one pod, which takes the seat.

    Args:
        seat: what there is one of.
        hold: of pods, in force.
    """

    adapter_class: ClassVar = KubernetesAdapter
    job_api = "batch/v1"
    index = "batch.kubernetes.io/job-completion-index"
    lacks: ClassVar = {
        SchedulerCapability.STARTS: "its workloads are pods",
        SchedulerCapability.GANGS: "kube-scheduler preempts pod by pod",
    }

    def __init__(self, namespace: Namespace, image: str, seat: Seat, hold: PodHold) -> None:
        super().__init__(namespace, image, hold)
        self._seat = seat

    async def working(self, adapter: KubernetesAdapter) -> tuple[Mirrored, ...]:
        await adapter._preemptions.synced.wait()
        return ()

    def victim(self, name: str, members: int) -> Object:
        return self._work(name, members)

    def template_of(self, job: Object) -> Object:
        template: Object = job["spec"]["template"]
        return template

    async def finish(self, victim: RunningWorkload) -> None:
        await self.end_well(victim)
        await self.namespace.wait("batch/v1", "Job", job_of(victim), has_condition("Complete"))

    async def demand(self) -> None:
        name = f"ml{next(self.numbers)}"
        await self.namespace.apply(self._work(name, priorityClassName=self._seat.urgent))

    def _work(self, name: str, members: int = 1, **spec: Any) -> Object:
        self.jobs.append(name)
        seat = {"requests": {_SEAT: "1"}, "limits": {_SEAT: "1"}}
        main = container(self.image, "python3", "-c", UNTIL_TOLD, resources=seat)
        fields = {"completionMode": "Indexed", "parallelism": members, "completions": members, "backoffLimit": 100}
        return job(name, main, fields=fields, **{"terminationGracePeriodSeconds": GRACE_SECONDS, **spec})


async def _offer(namespace: Namespace, node: str, seats: str | None) -> None:
    """Advertise so many seats of a node; None: none any more. The kubelet keeps what it does not know."""
    status = {"capacity": {_SEAT: seats}, "allocatable": {_SEAT: seats}}
    patch = f"--patch={json.dumps({'status': status})}"
    await namespace.kubectl("patch", "node", node, "--subresource=status", "--type=merge", patch)
