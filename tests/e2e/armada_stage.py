"""The real Armada as the conformance suite plays it: somebody preempts jobs through its API, and they come back.

A preStop of the pod's own stands for that of our pod webhook, and the stage for the node's agent, which answers it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from typing import ClassVar

import tenacity
from armada_client.armada.event_pb2 import JobSetRequest
from armada_client.typings import EventType

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.conformance.stage import running_beside
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Release
from cedana_sched_armada.adapter import ArmadaAdapter
from cedana_sched_armada.events import JobSet, event_position_key, read_event
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG, PREVIOUS
from tests.cluster.api.client import Object
from tests.cluster.armada.jobs import Jobs, pod_name, pod_spec
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.cable import Cable
from tests.e2e.real_stage import UNTIL_TOLD, Mirrored, RealStage, protected, workload_of

SET = "md"
_GRACE_SECONDS = 60
_WAIT = "until test -e /tmp/go; do sleep 0.1; done"
_GO = "open('/tmp/go', 'w')"


class RealArmadaStage(RealStage):
    """Each workload is a job; all of a test are in one job set.

    Args:
        jobs: of the namespace.
        queue: theirs.
        cable: from the adapter to Armada.
    """

    adapter_class: ClassVar = ArmadaAdapter
    lacks: ClassVar = {
        SchedulerCapability.CANCELLATION: "a job that Armada has preempted is over for it",
        SchedulerCapability.KEEPING: "Armada asks nobody",
        SchedulerCapability.STARTS: "its workloads are pods",
    }

    def __init__(self, namespace: Namespace, image: str, jobs: Jobs, queue: str, cable: Cable) -> None:
        super().__init__(namespace, image)
        self.settings = {"url": cable.address}
        self._jobs = jobs
        self._queue = queue
        self._cable = cable
        self._gangs: dict[str, list[str]] = {}
        """By job, all that are preempted with it."""
        self._adapter: ArmadaAdapter | None = None

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[ArmadaAdapter]:
        async with running_beside(self._answer()), super().adapter() as adapter:
            assert isinstance(adapter, ArmadaAdapter)
            self._adapter = adapter
            try:
                yield adapter
            finally:
                self._adapter = None

    async def working(self, adapter: ArmadaAdapter) -> tuple[Mirrored, ...]:
        await adapter._ready.wait()
        return ()

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        gang = {GANG: f"gang{next(self.numbers)}", CARDINALITY: str(members)} if members > 1 else {}
        items = []
        for _ in range(members):
            metadata = _metadata(f"md{next(self.numbers)}" if protected else "", deadline_seconds)
            labels, annotations = metadata["labels"], {**metadata["annotations"], **gang}
            items.append(self._jobs.item(self._spec(held=protected), labels=labels, annotations=annotations))
        jobs = await self._jobs.submit_items(self._queue, SET, *items)
        self._gangs |= dict.fromkeys(jobs, jobs)
        return await self._running(jobs)

    async def preempt(self, victim: RunningWorkload) -> None:
        jobs = self._gangs.get(_job_of(victim), [_job_of(victim)])
        for job in jobs:
            await self._jobs.client.preempt_jobs(self._queue, SET, job)
        await self._jobs.wait_for(self._queue, SET, dict.fromkeys(jobs, EventType.preempted))
        ends = {pod_name(job) for job in jobs}
        await self.pods_are(lambda pods: not [one for one in pods if _name(one) in ends and _is_whole(one)])

    async def is_evicted(self, victim: RunningWorkload) -> bool:
        """A pod that is being deleted runs on while its preStop waits."""
        found = await self.namespace.api.objects("v1", "Pod", self.namespace.name)
        return victim.uid not in {one["metadata"]["uid"] for one in found if one["status"]["phase"] == "Running"}

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        await self.preempt(victim)
        deleted = await self.namespace.get("v1", "Pod", victim.workload.name)
        return datetime.fromisoformat(deleted["metadata"]["deletionTimestamp"]).timestamp()

    async def finish(self, victim: RunningWorkload) -> None:
        await self.end_well(victim)
        await self.pods_are(
            lambda pods: (
                not [
                    one for one in pods if one["metadata"]["uid"] == victim.uid and one["status"]["phase"] == "Running"
                ]
            )
        )

    async def give_up(self, workload: RunningWorkload) -> None:
        """A preempted job is over already, and says no more than that it was asked."""
        job = _job_of(workload)
        await self._jobs.client.cancel_jobs(self._queue, SET, job)
        await self._jobs.wait_for(self._queue, SET, {job: EventType.cancelling})
        await self.pods_are(lambda pods: not [one for one in pods if _name(one) == pod_name(job) and _is_whole(one)])

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        previous = _job_of(victim)

        def is_it(one: Object) -> bool:
            return bool(one["metadata"]["annotations"].get(PREVIOUS) == previous)

        pods = await self.pods_are(lambda pods: any(map(is_it, pods)))
        (again,) = await self._running([one["metadata"]["labels"]["armada_job_id"] for one in pods if is_it(one)])
        return again

    async def on_release_decided(self, release: Release) -> None:
        for one in await self.namespace.api.objects("v1", "Pod", self.namespace.name):
            if one["metadata"]["uid"] in release.verdicts:
                await self._let_go(one)

    async def wait_until_reported(self) -> None:
        """All that Armada shows by now has been heard and noted, and what follows from it is done."""
        await super().wait_until_reported()
        if (adapter := self._adapter) is None or adapter._job_sets is None:
            return
        stream, last = JobSet(self._queue, SET), await self._last()

        def is_heard() -> bool:
            assert adapter._job_sets is not None
            followed = stream in adapter._job_sets._watched
            return not followed or event_position_key(adapter._ledger.streams.get(stream, "")) >= last

        await self._until(is_heard)
        await adapter._ledger.wait_until_persisted()
        await self._until(lambda: not adapter._chores._known)
        await super().wait_until_reported()

    async def repeat_current_state(self) -> None:
        self._cable.cut()
        await super().repeat_current_state()

    @asynccontextmanager
    async def scheduler_outage(self) -> AsyncIterator[None]:
        self._cable.down = True
        self._cable.cut()
        try:
            async with super().scheduler_outage():
                yield
        finally:
            self._cable.down = False

    def _spec(self, *, held: bool) -> Object:
        spec = pod_spec(self.image, "python3", "-c", UNTIL_TOLD, terminationGracePeriodSeconds=_GRACE_SECONDS)
        if held:
            (main,) = spec["containers"]
            main["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", _WAIT]}}}
        return spec

    async def _running(self, jobs: Collection[str]) -> tuple[RunningWorkload, ...]:
        wanted = [pod_name(job) for job in jobs]

        def running(pods: list[Object]) -> dict[str, Object]:
            return {_name(one): one for one in pods if one["status"]["phase"] == "Running"}

        pods = running(await self.pods_are(lambda pods: running(pods).keys() >= set(wanted)))
        await self._jobs.wait_for(self._queue, SET, dict.fromkeys(jobs, EventType.running))
        await self.wait_until_reported()
        return tuple(workload_of(pods[name]) for name in wanted)

    async def _answer(self) -> None:
        """The preStop of a pod of which the adapter says that its deletion is no preemption."""
        answered: set[str] = set()
        async with aclosing(self.namespace.api.watch("v1", "Pod", self.namespace.name)) as events:
            async for event in events:
                for one in event.object["items"] if event.type == "LIST" else [event.object]:
                    metadata = one["metadata"]
                    said = metadata.get("annotations", {}).get(names.NOT_PREEMPTED)
                    if said == "true" and event.type != "DELETED" and metadata["uid"] not in answered:
                        answered.add(metadata["uid"])
                        await self._let_go(one)

    async def _let_go(self, one: Object) -> None:
        with suppress(ClusterError):  # it has ended meanwhile; else its end is waited for in vain
            await self.namespace.exec(_name(one), "python3", "-c", _GO)

    async def _last(self) -> tuple[int, ...]:
        """Where the stream stands, as far as it concerns the adapter."""
        request = JobSetRequest(queue=self._queue, id=SET, watch=False)
        last: tuple[int, ...] = ()
        async for told in self._jobs.client.event_stub.GetJobSetEvents(request):
            if read_event(told) is not None:
                last = event_position_key(told.id)
        return last

    async def _until(self, condition: Callable[[], bool]) -> None:
        """What the adapter has heard tells nobody."""
        again = tenacity.AsyncRetrying(
            wait=tenacity.wait_fixed(0.02),
            stop=tenacity.stop_after_delay(self.patience_seconds),
            retry=tenacity.retry_if_result(lambda holds: not holds),
        )

        async def look() -> bool:
            return condition()

        await again(look)


def _metadata(identifier: str, deadline_seconds: float) -> Object:
    return protected(identifier, deadline_seconds) if identifier else {"labels": {}, "annotations": {}}


def _is_whole(one: Object) -> bool:
    return "deletionTimestamp" not in one["metadata"]


def _name(one: Object) -> str:
    return str(one["metadata"]["name"])


def _job_of(workload: RunningWorkload) -> str:
    return workload.workload.name.split("-")[1]
