"""Nodes whose provider takes them away: its metadata server answers on the node, as documented."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

from cedana_sched.model.objects.names import CORDONED, NODE_INTERRUPTION
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import is_gone, wait_for
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product import parts
from tests.e2e.product.rendering import NAMESPACE
from tests.servers.metadata import FakeAws, FakeAzure, FakeGcp, FakeMetadataServer

_PORT: Final = 10399
INTERRUPTIONS: Final[dict[str, Any]] = {"provider": "auto", "metadataUrl": f"http://127.0.0.1:{_PORT}"}
"""The chart's value: agents call it, and detect whose it is."""
_SECONDS: Final = patient(60)
"""Between a notice that names a time and that time; those of GCP always mean 30 s."""


@asynccontextmanager
async def announced(
    provider: type[FakeMetadataServer],
    namespace: Namespace,
    node: str,
    *,
    seconds: float = _SECONDS,
    is_named: bool = False,
) -> AsyncIterator[datetime]:
    """The provider takes the node away, and says when; at the end it has changed its mind, and the node takes pods.

    `is_named`: agents have the provider's name; else the node's agent starts again, to detect it.
    """
    server = provider()
    async with server.serve(namespace.cluster.nodes[node].listen(_PORT)):
        if not is_named:
            await _restart_agent(namespace, node)
        ends_at = (datetime.now(tz=UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
        await _announce(server, ends_at)
        try:
            yield ends_at
            await wait_for(namespace.api, "v1", "Node", node, _is_cordoned_by_us)
        finally:
            await _withdraw(server)
            await wait_for(namespace.api, "v1", "Node", node, is_left_alone)


def is_left_alone(node: Object) -> bool:
    """Whether a node has no notice, and takes pods."""
    annotations = node["metadata"].get("annotations", {})
    is_cordoned = node["spec"].get("unschedulable", False)
    return NODE_INTERRUPTION not in annotations and CORDONED not in annotations and not is_cordoned


def _is_cordoned_by_us(node: Object) -> bool:
    return CORDONED in node["metadata"].get("annotations", {}) and node["spec"].get("unschedulable", False)


async def _announce(server: FakeMetadataServer, ends_at: datetime) -> None:
    match server:
        case FakeAws():
            server.instance_action = {"action": "terminate", "time": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"}
        case FakeGcp():
            await server.set("preempted", "TRUE")
        case FakeAzure():
            server.announce("Preempt", not_before=format_datetime(ends_at, usegmt=True))


async def _withdraw(server: FakeMetadataServer) -> None:
    match server:
        case FakeAws():
            server.instance_action = None
        case FakeGcp():
            await server.set("preempted", "FALSE")
        case FakeAzure():
            server.withdraw()


async def _restart_agent(namespace: Namespace, node: str) -> None:
    """Let the node's agent detect its provider, which it does when it starts."""
    api = namespace.api
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=agent")
    (name,) = [one["metadata"]["name"] for one in pods if one["spec"]["nodeName"] == node]
    await api.delete("v1", "Pod", name, NAMESPACE)
    await wait_for(api, "v1", "Pod", name, is_gone, namespace=NAMESPACE)
    await parts.whole(api)
