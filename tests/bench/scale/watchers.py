"""What one write to a Checkpoint costs the API server, by how many agents watch the kind, and by what they ask for.

Before anything else watches the kind: the definitions are there, the product is not.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import tenacity

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from tests.bench.scale.agents import open_clients
from tests.bench.scale.checkpoints import checkpoint
from tests.bench.scale.figures import spread
from tests.bench.scale.usage import api_server
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run
from tests.cluster.steps import Steps

COUNTS = (0, 1, 100, 1000)
WRITES = 200
REPEATED = 3
_WITHIN = 120.0
_OTHERS = 3
"""Watches of Kubernetes' own, such as the garbage collector's, come and go."""
_WATCHES = re.compile(
    r'^apiserver_longrunning_requests\{[^}]*resource="checkpoints"[^}]*verb="WATCH"[^}]*\} (\d+)', re.MULTILINE
)

Selector = Callable[[str], Mapping[str, str]]
"""What the agent of that node asks for."""


def by_label(node: str) -> Mapping[str, str]:
    """As agents do: a CRD's fields are none that the API server indexes, so that a field would cost the same."""
    return {"labelSelector": names.orders_selector(node)}


def by_name(node: str) -> Mapping[str, str]:
    """One object of the node's own name, which the API server does index: the least that a watch can cost."""
    return {"fieldSelector": f"metadata.name={node}"}


SELECTORS: Mapping[str, Selector] = {"the node's label": by_label, "one object's name": by_name}


class WatchCost(msgspec.Struct, frozen=True):
    """The API server's processor time for one write (seconds), in each repetition."""

    selector: str
    watchers: int
    cpu_seconds: list[float]


async def measure(cluster: Cluster, namespace: str, steps: Steps) -> list[WatchCost]:
    """Each number of watchers, by each selector."""
    costs: list[WatchCost] = []
    async with Api.open(str(cluster.kubeconfig)) as api:
        body = _checkpoint(namespace)
        await api.create(CHECKPOINTS, body, into=dict)
        try:
            for selector, asks in SELECTORS.items():
                for count in COUNTS:
                    if count or not costs:
                        async with _watching(cluster, asks, count):
                            found = [await _a_write(cluster, api, body) for _ in range(REPEATED)]
                        costs.append(WatchCost(selector, count, found))
                        steps.say(f"{count} watches by {selector}: {spread([1e3 * one for one in found])} ms a write")
        finally:
            await api.delete(CHECKPOINTS, body["metadata"]["name"], namespace)
    return costs


def _checkpoint(namespace: str) -> Object:
    """Of a node that none of the watchers asks for."""
    return checkpoint("watched", "kubectl", WorkloadRef("uid", namespace, "md-0", "another-node"))


async def _a_write(cluster: Cluster, api: Api, body: Object) -> float:
    """What the API server did meanwhile anyway is not its cost."""
    idle = await _cpu_during(cluster, asyncio.sleep(2.0))
    began = time.monotonic()
    spent = await _cpu_during(cluster, _write(api, body))
    return (spent - idle / 2.0 * (time.monotonic() - began)) / WRITES


async def _cpu_during(cluster: Cluster, work: Awaitable[None]) -> float:
    before = api_server(cluster).cpu_seconds
    await work
    return api_server(cluster).cpu_seconds - before


async def _write(api: Api, body: Object) -> None:
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    for number in range(WRITES):
        status = {**body["status"], "transfer": {"readBytes": number}}
        await api.patch(CHECKPOINTS, name, namespace, {"status": status}, subresource="status")


@asynccontextmanager
async def _watching(cluster: Cluster, asks: Selector, count: int) -> AsyncIterator[None]:
    """So many watches are open inside the block, as the API server itself says."""
    async with open_clients(cluster.kubeconfig) as clients, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_follow(client, asks(f"fake-{number}")), name=f"watch {number}")
            for number, client in zip(range(count), itertools.cycle(clients), strict=False)
        ]
        try:
            await _until_open(cluster, count)
            yield
        finally:
            for task in tasks:
                task.cancel()
    await _until_open(cluster, 0)


async def _follow(api: Api, query: Mapping[str, str]) -> None:
    while True:
        async for _ in api.stream(CHECKPOINTS, None, {**query, "timeoutSeconds": "3000"}, silent_seconds=3000.0):
            pass


@tenacity.retry(
    retry=tenacity.retry_if_result(lambda is_so: not is_so),
    wait=tenacity.wait_fixed(0.5),
    stop=tenacity.stop_after_delay(_WITHIN),
)
async def _until_open(cluster: Cluster, count: int) -> bool:
    """The API server tells nobody when that changes, so that it is asked again."""
    kubectl = cluster.binaries.program("kubectl")
    command = (kubectl, "--kubeconfig", cluster.kubeconfig, "get", "--raw", "/metrics")
    said = await run(*command, what="metrics not read", remedy="see the API server's log")
    return 0 <= sum(int(number) for number in _WATCHES.findall(said)) - count <= _OTHERS


def table(costs: Sequence[WatchCost]) -> str:
    """Markdown: a row for each number of watches."""
    lines = ["| watches of Checkpoints | by | API server's CPU for a write to one that none of them wants (ms) |"]
    lines.append("|---:|---|---:|")
    for one in costs:
        told = spread([1e3 * seconds for seconds in one.cpu_seconds])
        lines.append(f"| {one.watchers:,} | {one.selector if one.watchers else ''} | {told} |")
    return "\n".join(lines)
