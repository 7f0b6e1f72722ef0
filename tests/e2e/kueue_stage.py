"""The real Kueue as the conformance suite plays it: bio's Job takes the whole cohort, and ml wants its half back.

An admission policy stands in for the webhook's hold of protected Jobs.
"""

from __future__ import annotations

from typing import ClassVar

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.kube.resources import JOBS
from cedana_sched_kueue.adapter import KueueAdapter
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, wait_for_all
from tests.cluster.fixtures.namespace import container, job
from tests.e2e.job_stage import JobStage, job_of
from tests.e2e.product.queues import API, QUEUE_LABEL
from tests.e2e.real_stage import UNTIL_TOLD, Mirrored

HELD = "conformance-held"
"""Label of the Jobs whose suspension is refused."""


class RealKueueStage(JobStage):
    """Each job is a Job; the two queues of the namespace are there. A changed Job makes Kueue try again."""

    adapter_class: ClassVar = KueueAdapter
    job_api = "batch/v1"
    index = "batch.kubernetes.io/job-completion-index"
    lacks: ClassVar = {
        SchedulerCapability.CANCELLATION: "Kueue stops a Workload that it has evicted, whatever comes then",
        SchedulerCapability.KEEPING: "Kueue cannot be asked for another victim",
        SchedulerCapability.DEADLINE: "Kueue waits as long as its suspension of the Job is refused",
        SchedulerCapability.STARTS: "its workloads are pods",
    }

    async def working(self, adapter: KueueAdapter) -> tuple[Mirrored, ...]:
        jobs, workloads = adapter._informers.by_resource[JOBS], adapter._workloads
        await jobs.synced.wait()
        await workloads.synced.wait()
        return (("batch/v1", "Job", jobs), (API, "Workload", workloads))

    def victim(self, name: str, members: int) -> Object:
        return self._work(name, "bio", f"{800 // members}m", members)

    def template_of(self, job: Object) -> Object:
        template: Object = job["spec"]["template"]
        return template

    def protect(self, job: Object, deadline_seconds: float) -> None:
        super().protect(job, deadline_seconds)
        job["metadata"]["labels"][HELD] = "true"

    async def preempt(self, victim: RunningWorkload) -> None:
        owner = job_of(victim)
        await self.namespace.apply(self._work(f"ml{next(self.numbers)}", "ml", "400m", 1))
        is_evicted = has_condition("Evicted")

        def decided(workloads: list[Object]) -> bool:
            owned = [one for one in workloads if one["metadata"]["ownerReferences"][0]["name"] == owner]
            return any(is_evicted(one) for one in owned)

        await wait_for_all(self.namespace.api, API, "Workload", decided, namespace=self.namespace.name)

    async def finish(self, victim: RunningWorkload) -> None:
        await self.end_well(victim)
        await self.namespace.wait("batch/v1", "Job", job_of(victim), has_condition("Complete"))

    async def pods_of(self, name: str, members: int) -> list[Object]:
        return await self.namespace.pods(f"job={name}", count=members)

    def _work(self, name: str, queue: str, cpu: str, members: int) -> Object:
        self.jobs.append(name)
        main = container(self.image, "python3", "-c", UNTIL_TOLD, resources={"requests": {"cpu": cpu}})
        size = {"parallelism": members, "completions": members, "completionMode": "Indexed"}
        labels = {QUEUE_LABEL: queue}
        return job(name, main, labels=labels, fields={"suspend": True, "backoffLimit": 0, **size})
