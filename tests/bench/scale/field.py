"""Kueue's side of the measurement: bio's Jobs of ten pods on fake nodes, and ml, which takes a part back at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.cluster.addons import kwok
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container
from tests.cluster.together import together
from tests.e2e.product.queues import groups, indexed_job

PODS_OF_A_JOB = 10
_WRITERS = 20
_NODE = {"type": "kwok"}
REAL = {"node-role.kubernetes.io/control-plane": ""}
"""Labels of the node that runs what we install: on fake ones our agents are simulated."""


@dataclass(frozen=True)
class Size:
    """How much there is: protected pods that run, victims among them, and fake nodes for all."""

    pods: int
    victims: int
    nodes: int

    @property
    def jobs(self) -> int:
        return self.pods // PODS_OF_A_JOB


@asynccontextmanager
async def running(namespace: Namespace, size: Size, *, within: float) -> AsyncIterator[None]:
    """All of bio's pods run inside the block; as many of them as are to be victims on what belongs to ml."""
    quotas = {"bio": str(size.pods - size.victims), "ml": str(size.victims)}
    async with groups(namespace, quotas):
        rest = iter(range(size.jobs))

        async def create() -> None:
            for number in rest:
                await namespace.apply(_job(f"md-{number}", "bio", PODS_OF_A_JOB, "1"))

        await together(*(create() for _ in range(_WRITERS)))
        # by the pods themselves, because a Job's status may be minutes behind; and not by all that befalls each of them
        await wait_for_all(
            namespace.api, "v1", "Pod", lambda running: len(running) >= size.pods,
            namespace=namespace.name, field_selector="status.phase=Running", within=within,
        )  # fmt: skip
        yield


async def reclaim(namespace: Namespace, size: Size) -> None:
    """A Job of ml's that needs all that belongs to ml: Kueue preempts as many Jobs as run on that, in one moment."""
    await namespace.apply(_job("train", "ml", 1, str(size.victims)))


def _job(name: str, queue: str, pods: int, cpu: str) -> Object:
    body = indexed_job(name, queue, "nothing-is-pulled", pods=pods, cpu=cpu)
    main = container("nothing-is-pulled", "nothing-runs", resources={"requests": {"cpu": cpu}})
    body["spec"]["template"]["spec"] |= {
        "containers": [main],
        "nodeSelector": _NODE,
        "tolerations": [dict(kwok.TOLERATION)],
    }
    return body
