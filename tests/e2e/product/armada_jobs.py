"""Simulations as jobs of Armada, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from armada_client.armada.event_pb2 import JobSubmittedEvent
from armada_client.armada.submit_pb2 import Job, JobSubmitRequestItem
from armada_client.typings import EventType

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched_armada.job_of_pod import CARDINALITY, FIRST, GANG, PREVIOUS
from tests.cluster.api.client import Object
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs, pod_name, pod_spec
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following

SET = "md"
"""The job set of all simulations."""
_SMALL = "100m"


class Group:
    """A research group: a queue of Armada, with one job set of simulations.

    Args:
        jobs: of the test's namespace.
        queue: its name.
    """

    def __init__(self, jobs: Jobs, queue: str) -> None:
        self.jobs = jobs
        self.queue = queue

    @classmethod
    @asynccontextmanager
    async def of(cls, armada: Armada, namespace: Namespace, name: str) -> AsyncIterator[Group]:
        """One with a queue of its own; its jobs are cancelled at the end."""
        async with Jobs.opened(armada.address, namespace.name) as jobs:
            yield cls(jobs, await jobs.queue(f"{namespace.name}-{name}"))

    async def submit(
        self,
        name: str,
        image: str,
        *command: str,
        cpu: str = _SMALL,
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """Submit a simulation, and return its job; `Following` finds its pods by its name, which is its id as well."""
        item = self.item(name, image, *command, cpu=cpu, env=env, annotations=annotations)
        [job] = await self.jobs.submit_items(self.queue, SET, item)
        return job

    async def submit_gang(self, gang: str, image: str, *command: str, cpu: str, size: int = 2) -> list[str]:
        """Submit simulations of which none runs without the others; they are called after the gang, with numbers."""
        together = {GANG: gang, CARDINALITY: str(size)}
        names = [f"{gang}-{number}" for number in range(size)]
        items = [self.item(name, image, *command, cpu=cpu, annotations=together) for name in names]
        return await self.jobs.submit_items(self.queue, SET, *items)

    def item(
        self,
        name: str,
        image: str,
        *command: str,
        cpu: str,
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> JobSubmitRequestItem:
        """One simulation of a submission; without `env` it asks for protection under its name."""
        spec = simulation(image, *command, cpu=cpu, env=named(name) if env is None else env)
        return self.jobs.item(spec, labels={"job-name": name}, annotations=annotations)

    async def preempt(self, job: str) -> None:
        """Have Armada preempt it, as an admin does."""
        await self.jobs.client.preempt_jobs(self.queue, SET, job)

    async def cancel(self, job: str) -> None:
        """Cancel it, as its owner does."""
        await self.jobs.client.cancel_jobs(self.queue, SET, job)

    async def cancel_all(self) -> None:
        """Cancel the job set."""
        await self.jobs.client.cancel_jobset(self.queue, SET, filter_states=[])

    async def successor(self, job: str, *, within: float = 120) -> Job:
        """Wait for the job that takes its place, and return what was submitted."""
        async with asyncio.timeout(patient(within)), aclosing(self.jobs.events(self.queue, SET)) as events:
            async for event in events:
                message = event.message
                if isinstance(message, JobSubmittedEvent) and message.job.annotations.get(PREVIOUS) == job:
                    made: Job = message.job
                    return made
        raise AssertionError("a stream of events that is watched never ends")

    async def places_taken(self, first: str) -> list[str]:
        """The jobs whose places were taken, of all that began with one; twice where two jobs took one's place."""
        taken: dict[str, str] = {}  # by job: Armada delivers an event again after a death of Pulsar or of an ingester
        async with aclosing(self.jobs.events(self.queue, SET, watch=False)) as events:
            async for event in events:
                message = event.message
                if isinstance(message, JobSubmittedEvent) and message.job.annotations.get(FIRST) == first:
                    taken[message.job_id] = message.job.annotations[PREVIOUS]
        return list(taken.values())

    async def succeeded(self, *jobs: str) -> None:
        """Wait until these jobs are done."""
        await self.jobs.wait_for(self.queue, SET, dict.fromkeys(jobs, EventType.succeeded), within=180)


def product_beside(armada: Armada, cluster: Cluster, **changes: Any) -> dict[str, Any]:
    """What the product on a cluster is told of Armada; a job that is preempted again comes back soon."""
    return {"enabled": True, "url": armada.address_in(cluster), "limits": {"firstPauseSeconds": 1}, **changes}


def named(name: str) -> dict[str, str]:
    """The environment of whom is protected under a name."""
    return {CHECKPOINT_VARIABLE: name}


def simulation(image: str, *command: str, cpu: str, env: Mapping[str, str]) -> Object:
    """A pod's spec, with room for what real programs need."""
    return pod_spec(image, *command, cpu=cpu, memory="512Mi", env=env)


async def half_a_node(namespace: Namespace) -> str:
    """So much CPU that two pods fit a node, and three do not."""
    nodes = await namespace.api.objects("v1", "Node")
    return f"{min(int(node['status']['allocatable']['cpu']) for node in nodes) * 400}m"


async def told(namespace: Namespace, job: str, reason: str) -> str:
    """Wait until an Event of ours on a job's pod has this reason, and return what it says."""
    return (await wait_for_messages(namespace, pod_name(job), reason))[0]


async def complete(following: Following) -> list[str]:
    """All that a simulation has said, once its pods have ended."""
    await asyncio.wait_for(following.read(), patient(60))
    return following.lines(0)
