"""Armada as the conformance suite plays it: a server with its event streams, and an executor that deletes pods.

Nothing holds Armada up. What holds a protected pod that is being deleted is its preStop: it waits for the word of the
adapter or of the coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import ClassVar, cast

from armada_client.armada.submit_pb2 import JobSubmitRequestItem

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names
from cedana_sched.model.records import HoldStep
from cedana_sched_armada.adapter import ArmadaAdapter
from cedana_sched_armada.events import JobSet, event_position_key
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from tests.unit.adapters.armada.armada_builders import JOB_SET, QUEUE, item, until
from tests.unit.adapters.armada.fake_armada import FakeArmada

GRACE_SECONDS = 600
STREAM = JobSet(QUEUE, JOB_SET)


class ArmadaStage(ClusterStage):
    """Each workload is a job; all are in one job set.

    Args:
        armada: the server.
        address: where it is.
    """

    adapter_class: ClassVar = ArmadaAdapter
    lacks: ClassVar = {
        SchedulerCapability.CANCELLATION: "a job that Armada has preempted is over for it",
        SchedulerCapability.KEEPING: "Armada asks nobody",
        SchedulerCapability.STARTS: "its workloads are pods",
    }

    def __init__(self, armada: FakeArmada, address: str) -> None:
        super().__init__()
        self.settings = {"url": address, "settleSeconds": 0}
        self._armada = armada
        self._adapter: ArmadaAdapter | None = None
        self._jobs: dict[str, str] = {}
        """By uid of the pod."""
        self.api.subscribe(self._end_what_nobody_holds)

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[ArmadaAdapter]:
        async with super().adapter() as adapter:
            self._adapter = cast("ArmadaAdapter", adapter)
            try:
                await self.wait_until_reported()
                yield self._adapter
            finally:
                self._adapter = None

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        gang = {GANG: f"gang-{next(self.numbers)}", CARDINALITY: str(members)} if members > 1 else {}
        jobs = self._armada.submit(QUEUE, JOB_SET, *(item(annotations=gang) for _ in range(members)))
        pods = tuple(self._run(job, protected, deadline_seconds) for job in jobs)
        await self.wait_until_reported()
        return pods

    async def preempt(self, victim: RunningWorkload) -> None:
        await self._preempt(victim, GRACE_SECONDS)

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        return await self._preempt(victim, 30)

    async def finish(self, victim: RunningWorkload) -> None:
        self._armada.succeed(self._jobs[victim.uid])
        self.change_pod(victim, {"status": {"phase": "Succeeded"}})

    async def give_up(self, workload: RunningWorkload) -> None:
        """The executor deletes a cancelled job's pod as it does a preempted one's."""
        self._armada.cancel(self._jobs[workload.uid])
        self._delete([self._jobs[workload.uid]], GRACE_SECONDS)

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        (successor,) = self._armada.successors_of(self._jobs[victim.uid])
        again = self._run(successor)
        await self.wait_until_reported()
        return again

    async def wait_until_reported(self) -> None:
        """The adapter has heard of what is submitted now, has noted it, and has done what followed."""
        await super().wait_until_reported()
        if (adapter := self._adapter) is not None:
            await adapter._ready.wait()
            self._armada.submit(QUEUE, JOB_SET, JobSubmitRequestItem(namespace="settled"))
            marker = _batch(self._armada.last_id(QUEUE, JOB_SET))
            await until(lambda: not _follows(adapter) or _batch(adapter._ledger.streams[STREAM]) >= marker)
            await adapter._ledger.wait_until_persisted()
            await until(lambda: not adapter._chores._known)
            await super().wait_until_reported()

    async def repeat_current_state(self) -> None:
        await super().repeat_current_state()
        self._armada.cut_streams()
        self._armada.repeat()

    @asynccontextmanager
    async def scheduler_outage(self) -> AsyncIterator[None]:
        async with super().scheduler_outage():
            self._armada.down = True
            self._armada.cut_streams()
            try:
                yield
            finally:
                self._armada.down = False

    def _run(self, job: str, protected: bool = True, deadline_seconds: float = 600.0) -> RunningWorkload:
        run, made = self._armada.run(job), self._armada.jobs[job]
        pod = self.put_pod(
            f"armada-{job}-0",
            protected=protected,
            deadline_seconds=deadline_seconds,
            labels={"armada_job_id": job, "armada_job_run_id": run, "armada_queue_id": made.queue},
            annotations={**made.job.annotations, "armada_jobset_id": made.job_set},
            namespace=made.job.namespace,
            identifier=made.job.annotations.get(names.ID) or job,
        )
        self._jobs[pod.uid] = job
        return pod

    async def _preempt(self, victim: RunningWorkload, grace_seconds: int) -> float:
        """In one cycle of the scheduler; the executor deletes the pods a moment later."""
        job = self._jobs[victim.uid]
        gang = self._armada.jobs[job].job.annotations.get(GANG)
        jobs = [one for one, made in self._armada.jobs.items() if gang and made.job.annotations.get(GANG) == gang]
        jobs = jobs or [job]
        self._armada.preempt(*jobs)
        await self.wait_until_reported()
        killed_at = self._delete(jobs, grace_seconds)
        await self.wait_until_reported()
        return killed_at

    def _delete(self, jobs: Collection[str], grace_seconds: int) -> float:
        ends_at = (datetime.now(tz=UTC) + timedelta(seconds=grace_seconds)).replace(microsecond=0)
        at = ends_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        deleted = {"metadata": {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace_seconds}}
        for pod in self.api.all_of(PODS):
            metadata = pod["metadata"]
            if self._jobs[metadata["uid"]] in jobs and "deletionTimestamp" not in metadata:
                self.api.merge(PODS, metadata["name"], metadata["namespace"], deleted)
        return ends_at.timestamp()

    def _end_what_nobody_holds(self) -> None:
        for pod in self.api.all_of(PODS):
            metadata = pod["metadata"]
            if "deletionTimestamp" in metadata and not self._is_held(pod):
                self.api.remove(PODS, metadata["name"], metadata["namespace"])

    def _is_held(self, pod: Object) -> bool:
        """Whether a pod's preStop is still waiting: it runs with the agent's answer, and ends with the pod."""
        metadata = pod["metadata"]
        if names.PROTECTED not in metadata["labels"] or pod["status"]["phase"] != "Running":
            return False
        if metadata["annotations"].get(names.NOT_PREEMPTED) == "true":
            return False
        holds = [hold for hold in self.holds() if metadata["uid"] in hold["spec"]["pods"]]
        return not holds or any(hold["status"]["step"] == HoldStep.HOLDING for hold in holds)


def _follows(adapter: ArmadaAdapter) -> bool:
    return adapter._job_sets is not None and STREAM in adapter._job_sets._watched


def _batch(identifier: str) -> tuple[int, ...]:
    """Of the events in one batch the last ones may be of no concern."""
    return event_position_key(identifier)[:2]
