"""The real Volcano as the conformance suite plays it: bio has more than its half of a full cluster, and ml comes.

Our webhook's answer to Volcano's eviction is the real one, given in the tests' process.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.preemption import Release, Signal
from cedana_sched_volcano.adapter import VolcanoAdapter
from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.job_stage import JobStage, job_of, owner_of
from tests.e2e.product.volcano_queues import BATCH, SCHEDULING, completed, vcjob
from tests.e2e.real_stage import UNTIL_TOLD, Mirrored
from tests.e2e.volcano_field import Field, placed
from tests.e2e.volcano_hold import VolcanoHold

_MILLICPU, _WANTED, _WANTED_WITHIN = 6000, 4500, 2500
"""Of a node's 8000: all of a job together; who comes, for whom one of a gang makes room; and who comes within its
queue, and gets pods only as long as the queue's jobs together would fit the cluster."""
_GRACE_SECONDS = 15
_STAY = "open('/tmp/stay', 'w')"


class RealVolcanoStage(JobStage):
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

    def __init__(
        self, namespace: Namespace, image: str, field: Field, hold: VolcanoHold, *, within: bool = False
    ) -> None:
        super().__init__(namespace, image)
        self._field = field
        self._hold = hold
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

    async def preempt(self, victim: RunningWorkload) -> None:
        """A gang goes by whichever of its members Volcano chooses."""
        began, owner = datetime.now(tz=UTC), job_of(victim)
        await self._come()
        await self.pods_are(lambda pods: any(_is_wanted(pod, began) for pod in pods if owner_of(pod) == owner))

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        """The webhook is away, and the pod is deleted; its program goes on as long as its grace period."""
        await self.namespace.exec(victim.workload.name, "python3", "-c", _STAY)
        self._hold.absent = True
        try:
            await self._come()
            pods = await self.pods_are(lambda pods: any("deletionTimestamp" in pod["metadata"] for pod in pods))
        finally:
            self._hold.absent = False
        (deleted,) = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        return datetime.fromisoformat(deleted["metadata"]["deletionTimestamp"]).timestamp()

    async def take_back(self, victim: RunningWorkload) -> None:
        await self.delete_preemptors()

    async def finish(self, victim: RunningWorkload) -> None:
        await self.end_well(victim)
        await completed(self.namespace, job_of(victim))

    async def on_hold_created(self, signal: Signal) -> None:
        self._hold.hold(signal)

    async def on_release_decided(self, release: Release) -> None:
        self._hold.release(release)

    async def pods_of(self, name: str, members: int) -> list[Object]:
        def runs(pod: Object) -> bool:
            return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]

        pods = await self.pods_are(
            lambda pods: sum(runs(pod) and owner_of(pod) == name for pod in pods) == members, within=90
        )
        own = [pod for pod in pods if owner_of(pod) == name]
        return sorted(own, key=lambda pod: str(pod["metadata"]["name"]))

    async def _come(self) -> None:
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
        self.template_of(body)["spec"]["terminationGracePeriodSeconds"] = _GRACE_SECONDS
        return placed(body, queue, self._field.node, millicpu)


def _is_wanted(pod: Object, since: datetime) -> bool:
    """Volcano asks for it, or has taken it."""
    mark = read_mark(pod["metadata"].get("annotations", {}))
    asked = mark is not None and datetime.fromisoformat(mark.since) > since
    return asked or "deletionTimestamp" in pod["metadata"]
