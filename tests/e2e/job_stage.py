"""What the stages have in common whose workloads are the pods of Jobs, the Kubernetes kind or Volcano's."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.model.objects import names
from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.real_stage import RealStage, protected, workload_of


class JobStage(RealStage):
    """Whoever is preempted is of one Job, and who comes for its place of another, named `ml` and a number."""

    job_api: ClassVar[str]
    """API version of its kind of Job."""
    index: ClassVar[str]
    """Annotation in which the kind's controller writes a pod's index."""

    def __init__(self, namespace: Namespace, image: str) -> None:
        super().__init__(namespace, image)
        self.jobs: list[str] = []
        """Names of those that are there."""

    @abstractmethod
    def victim(self, name: str, members: int) -> Object:
        """A Job that has more than its queue's share."""

    @abstractmethod
    def template_of(self, job: Object) -> Object:
        """Of its pods."""

    @abstractmethod
    async def pods_of(self, name: str, members: int) -> list[Object]:
        """Wait until so many pods of a Job run."""

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        await self.clear()
        name = f"bio{next(self.numbers)}"
        job = self.victim(name, members)
        if protected:
            self.protect(job, deadline_seconds)
        await self.namespace.apply(job)
        return await self.running(name, members)

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        await self.delete_preemptors()
        (again,) = await self.running(job_of(victim), 1)
        return again

    async def give_up(self, workload: RunningWorkload) -> None:
        await self.delete(job_of(workload))

    async def running(self, name: str, members: int) -> tuple[RunningWorkload, ...]:
        """A Job's pods, as the pod webhook leaves them."""
        for pod in await self.pods_of(name, members):
            metadata = pod["metadata"]
            if names.ID in metadata["annotations"]:
                await self.annotate("v1", "Pod", metadata["name"], {names.INDEX: metadata["annotations"][self.index]})
        await self.wait_until_reported()
        return tuple(map(workload_of, await self.pods_of(name, members)))

    def protect(self, job: Object, deadline_seconds: float) -> None:
        """Opt a Job in, by its own name."""
        metadata, ours = self.template_of(job)["metadata"], protected(job["metadata"]["name"], deadline_seconds)
        metadata["labels"] |= ours["labels"]
        metadata["annotations"] = ours["annotations"]

    async def clear(self) -> None:
        """Delete every Job, and wait until their pods are gone."""
        for name in tuple(self.jobs):
            await self.delete(name)
        await self.pods_are(lambda pods: not pods)

    async def delete_preemptors(self) -> None:
        """Have them leave, and wait until their pods are gone."""
        for name in [name for name in self.jobs if name.startswith("ml")]:
            await self.delete(name)
        await self.pods_are(lambda pods: not [pod for pod in pods if owner_of(pod).startswith("ml")])

    async def delete(self, name: str) -> None:
        self.jobs.remove(name)
        await self.namespace.delete(self.job_api, "Job", name)


def job_of(pod: RunningWorkload) -> str:
    return pod.workload.name.split("-")[0]


def owner_of(pod: Object) -> str:
    """Name of its Job."""
    return str(pod["metadata"]["labels"]["job-name"])
