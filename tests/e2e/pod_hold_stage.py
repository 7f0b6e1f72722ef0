"""What the stages have in common whose scheduler writes a condition on a pod, which our webhook refuses.

The webhook's answer is the real one, given in the tests' process.
"""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime
from typing import Final

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.preemption import Release, Signal
from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.job_stage import JobStage, job_of, owner_of
from tests.e2e.pod_hold import PodHold

GRACE_SECONDS: Final = 15
_STAY = "open('/tmp/stay', 'w')"


class PodHoldStage(JobStage):
    """Evictions are of single pods.

    Args:
        hold: of pods, in force.
    """

    def __init__(self, namespace: Namespace, image: str, hold: PodHold) -> None:
        super().__init__(namespace, image)
        self._hold = hold

    @abstractmethod
    async def demand(self) -> None:
        """Create a Job, for which the scheduler makes room."""

    async def preempt(self, victim: RunningWorkload) -> None:
        """A gang goes by whichever of its members the scheduler chooses."""
        began, owner = datetime.now(tz=UTC), job_of(victim)
        await self.demand()
        await self.pods_are(lambda pods: any(_is_wanted(pod, began) for pod in pods if owner_of(pod) == owner))

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        """The webhook is away, and the pod is deleted; its program goes on as long as its grace period."""
        await self.namespace.exec(victim.workload.name, "python3", "-c", _STAY)
        self._hold.absent = True
        try:
            await self.demand()
            pods = await self.pods_are(lambda pods: any("deletionTimestamp" in pod["metadata"] for pod in pods))
        finally:
            self._hold.absent = False
        (deleted,) = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        return datetime.fromisoformat(deleted["metadata"]["deletionTimestamp"]).timestamp()

    async def take_back(self, victim: RunningWorkload) -> None:
        await self.delete_preemptors()
        await self._hold.wait_until_unasked()

    async def on_hold_created(self, signal: Signal) -> None:
        self._hold.hold(signal)

    async def on_release_decided(self, release: Release) -> None:
        self._hold.release(release)

    async def pods_of(self, name: str, members: int) -> list[Object]:
        def runs(pod: Object) -> bool:
            is_whole = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            return is_whole and owner_of(pod) == name

        pods = await self.pods_are(lambda pods: sum(map(runs, pods)) == members, within=90)
        return sorted(filter(runs, pods), key=lambda pod: str(pod["metadata"]["name"]))


def _is_wanted(pod: Object, since: datetime) -> bool:
    """The scheduler asks for it, or has taken it."""
    mark = read_mark(pod["metadata"].get("annotations", {}))
    asked = mark is not None and datetime.fromisoformat(mark.since) > since
    return asked or "deletionTimestamp" in pod["metadata"]
