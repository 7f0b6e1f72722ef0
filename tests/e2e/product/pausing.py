"""Parts that stand still, and go on later as if nothing had happened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.api.client import Object
from tests.cluster.cluster import Cluster


@asynccontextmanager
async def paused(cluster: Cluster, pod: Object) -> AsyncIterator[None]:
    """The processes of a pod of one container stand still inside the block; its probes fail meanwhile."""
    (status,) = pod["status"]["containerStatuses"]
    task = ("ctr", "--namespace=k8s.io", "task")
    container, node = status["containerID"].removeprefix("containerd://"), cluster.nodes[pod["spec"]["nodeName"]]
    await node.run(*task, "pause", container)
    try:
        yield
    finally:
        await node.run(*task, "resume", container)
