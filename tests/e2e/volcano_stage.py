"""The real Volcano as the conformance suite plays it: bio has more than its half of a full cluster, and ml comes."""

from __future__ import annotations

from typing import ClassVar

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched_volcano.adapter import VolcanoAdapter
from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.job_stage import job_of
from tests.e2e.pod_hold import PodHold
from tests.e2e.pod_hold_stage import GRACE_SECONDS, PodHoldStage
from tests.e2e.product.volcano_queues import BATCH, SCHEDULING, completed, vcjob
from tests.e2e.real_stage import UNTIL_TOLD, Mirrored
from tests.e2e.volcano_field import Field, placed

_MILLICPU, _WANTED, _WANTED_WITHIN = 6000, 4500, 2500
"""Of a node's 8000: all of a job together; who comes, for whom one of a gang makes room; and who comes within its
queue, and gets pods only as long as the queue's jobs together would fit the cluster."""


class RealVolcanoStage(PodHoldStage):
    """Each job is a vcjob in the queue bio, on one node.

    Args:
        field: queues and nodes.
        hold: of pods, in force.
        within: whether who comes is of a higher priority in the same queue, and not of ml.
    """

    adapter_class: ClassVar = VolcanoAdapter
    job_api = BATCH
    index = "volcano.sh/task-index"
    lacks: ClassVar = {SchedulerCapability.STARTS: "its workloads are pods"}

    def __init__(self, namespace: Namespace, image: str, field: Field, hold: PodHold, *, within: bool = False) -> None:
        super().__init__(namespace, image, hold)
        self._field = field
        self._within = within

    async def working(self, adapter: VolcanoAdapter) -> tuple[Mirrored, ...]:
        await adapter._evictions.synced.wait()
        return ((SCHEDULING, "PodGroup", adapter._groups),)

    def victim(self, name: str, members: int) -> Object:
        return self._work(name, self._field.bio, _MILLICPU // members, members)

    def template_of(self, job: Object) -> Object:
        (task,) = job["spec"]["tasks"]
        template: Object = task["template"]
        return template

    async def finish(self, victim: RunningWorkload) -> None:
        await self.end_well(victim)
        await completed(self.namespace, job_of(victim))

    async def demand(self) -> None:
        name, field = f"ml{next(self.numbers)}", self._field
        if self._within:
            work = self._work(name, field.bio, _WANTED_WITHIN, priority=field.urgent)
        else:
            work = self._work(name, field.ml, _WANTED)
        await self.namespace.apply(work)

    def _work(self, name: str, queue: str, millicpu: int, members: int = 1, *, priority: str | None = None) -> Object:
        self.jobs.append(name)
        command = ("python3", "-c", UNTIL_TOLD)
        body = vcjob(name, "", self.namespace, self.image, *command, pods=members, at_least=members, priority=priority)
        self.template_of(body)["spec"]["terminationGracePeriodSeconds"] = GRACE_SECONDS
        return placed(body, queue, self._field.node, millicpu)
