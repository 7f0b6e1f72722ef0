"""Two queues of Volcano on a cluster that is full, for all conformance tests together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.urgency import urgency
from tests.e2e.product.volcano_queues import BATCH, HOST, groups, on, vcjob

_FILLING = 7000
_WAITS = ("sh", "-c", "trap exit TERM; sleep 3600 & wait")


@dataclass(frozen=True)
class Field:
    """Nodes have 8 CPUs.

    Args:
        node: where the tests' jobs are; another one is full of jobs of bio.
        bio: the queue that has more than its half with any job of the tests.
        ml: the queue that wants its half back.
        urgent: a PriorityClass above the others.
    """

    node: str
    bio: str
    ml: str
    urgent: str

    @classmethod
    @asynccontextmanager
    async def laid(cls, cluster: Cluster, api: Api, image: str) -> AsyncIterator[Field]:
        here, there = sorted(cluster.nodes)
        async with (
            Namespace.created(cluster, api, "conformance-field") as namespace,
            groups(namespace),
            urgency(namespace) as urgent,
        ):
            field = cls(here, f"{namespace.name}-bio", f"{namespace.name}-ml", urgent)
            filler = vcjob("filler", "bio", namespace, image, *_WAITS, pods=1)
            await namespace.apply(placed(filler, field.bio, there, _FILLING))
            await namespace.ready("filler-sim-0")
            yield field
            await namespace.delete(BATCH, "Job", "filler")


def placed(job: Object, queue: str, node: str, millicpu: int) -> Object:
    """The same job, whose pods ask for so much, in this queue and on this node."""
    job["spec"]["queue"] = queue
    (task,) = job["spec"]["tasks"]
    task["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{millicpu}m"}}
    return on({HOST: node}, job)
