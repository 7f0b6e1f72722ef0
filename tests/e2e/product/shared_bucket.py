"""The S3 server of one cluster under the same name in another, so that both see one bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.api.client import Api, Object
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.executor import Executor
from tests.cluster.fixtures.namespace import ensure_namespace
from tests.cluster.machine.machine import Machine
from tests.e2e.product.s3_server import NAME, NAMESPACE, PORT


@asynccontextmanager
async def shared_bucket(armada: Armada, api: Api, executor: Executor, other_api: Api) -> AsyncIterator[None]:
    """Let a second cluster of Armada's reach it, by the cable between both, for as long as the context lasts."""
    (pod,) = await api.objects("v1", "Pod", NAMESPACE, selector=f"app={NAME}")
    ours, theirs = armada.cluster.place, executor.cluster.place
    async with asyncio.TaskGroup() as group:
        ways = (
            _forward(armada.machine, str(ours.address_from_host), pod["status"]["podIP"]),
            _forward(executor.machine, str(theirs.address), str(ours.address_from_host)),
        )
        forwarding = [group.create_task(way) for way in ways]
        await ensure_namespace(other_api, NAMESPACE)
        for body in _service_at(str(theirs.address)):
            await other_api.apply(body, NAMESPACE)
        try:
            yield
        finally:
            for task in forwarding:
                task.cancel()


async def _forward(machine: Machine, address: str, target: str) -> None:
    """Lead what comes to an address of a machine to another one, for ever."""
    listen = f"TCP-LISTEN:{PORT},bind={address},fork,reuseaddr"
    await machine.run("socat", listen, f"TCP:{target}:{PORT}")


def _service_at(address: str) -> list[Object]:
    """A Service that no pod is behind."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"ports": [{"name": "s3", "port": PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "ports": [{"name": "s3", "port": PORT}],
            "endpoints": [{"addresses": [address]}],
        },
    ]
