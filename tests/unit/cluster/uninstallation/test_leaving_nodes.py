"""The uninstallation waits for agents that live, and cleans up after those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from cedana_sched.adapter.conformance.fake_api import ListsInMemory
from cedana_sched.cluster.uninstallation.leaving_nodes import leave_nodes
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import NODES, Resource
from cedana_sched.model.objects import names

AGENTS = "app.kubernetes.io/component=agent"


class Cluster(ListsInMemory, Api):
    """Nodes and agents; `agent` hears of every node that is marked, and may answer."""

    def __init__(self, agent: Callable[[Cluster, str], None]) -> None:
        self._agent = agent
        self.nodes: dict[str, Object] = {}
        self.pods: list[Object] = []
        self._watchers: list[asyncio.Queue[Object]] = []

    def add(self, name: str, *, ready: bool = True, agent: str | None = "Running") -> None:
        labels, annotations = (
            {names.NODE_PREPARED: "true", names.CPU_FEATURES: "c", "zone": "a"},
            {names.NODE_FACTS: "{}"},
        )
        condition = {"type": "Ready", "status": str(ready)}
        metadata = {"name": name, "uid": name, "labels": labels, "annotations": annotations}
        self.nodes[name] = {"metadata": metadata, "status": {"conditions": [condition]}}
        if agent:
            self.pods.append(
                {"metadata": {"name": f"a-{name}"}, "spec": {"nodeName": name}, "status": {"phase": agent}}
            )

    def change(self, name: str, change: Callable[[Object], None]) -> None:
        node = msgspec.json.decode(msgspec.json.encode(self.nodes[name]))
        change(node)
        node["metadata"]["resourceVersion"] = str(int(node["metadata"].get("resourceVersion", "0")) + 1)
        self.nodes[name] = node
        for queue in self._watchers:
            queue.put_nowait({"type": "MODIFIED", "object": node})

    def clears(self, name: str) -> None:
        """As an agent does."""

        def clear(node: Object) -> None:
            node["metadata"]["labels"] = {"zone": "a"}
            node["metadata"]["annotations"] = {}

        asyncio.get_running_loop().call_soon(self.change, name, clear)

    def marks(self) -> dict[str, set[str]]:
        """Every word of ours that is still on a node."""
        return {
            name: {key for part in ("labels", "annotations") for key in node["metadata"][part] if names.GROUP in key}
            for name, node in self.nodes.items()
        }

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,
    ) -> None:
        assert resource == NODES
        assert isinstance(patch, dict)
        told = patch["metadata"]

        def merge(node: Object) -> None:
            for part in ("labels", "annotations"):
                merged = node["metadata"][part] | told[part]
                node["metadata"][part] = {key: value for key, value in merged.items() if value is not None}

        self.change(name, merge)
        if told["annotations"].get(names.UNINSTALL):
            self._agent(self, name)

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: Any
    ) -> tuple[tuple[Any, ...], str]:
        bodies = list(self.nodes.values()) if resource == NODES else self.pods
        return tuple(msgspec.convert(body, into) for body in bodies), "0"

    async def stream(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        *,
        silent_seconds: float,
        only_metadata: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[Object] = asyncio.Queue()
        if resource == NODES:
            self._watchers.append(queue)
        while True:
            yield msgspec.json.encode(await queue.get())


async def test_every_agent_that_lives_clears_its_node() -> None:
    cluster = Cluster(Cluster.clears)
    cluster.add("one")
    cluster.add("two")
    assert await leave_nodes(cluster, "ours", AGENTS, 60) == ()
    assert cluster.marks() == {"one": set(), "two": set()}
    assert cluster.nodes["one"]["metadata"]["labels"] == {"zone": "a"}


async def test_dead_nodes_and_dead_agents_are_not_waited_for_and_lose_their_labels() -> None:
    cluster = Cluster(Cluster.clears)
    cluster.add("well")
    cluster.add("down", ready=False)
    cluster.add("bare", agent=None)
    cluster.add("stuck", agent="Pending")
    assert await leave_nodes(cluster, "ours", AGENTS, 60) == ("bare", "down", "stuck")
    assert set().union(*cluster.marks().values()) == set()


async def test_a_node_that_dies_meanwhile_ends_the_waiting() -> None:
    def dies(cluster: Cluster, name: str) -> None:
        def down(node: Object) -> None:
            node["status"]["conditions"][0]["status"] = "Unknown"

        asyncio.get_running_loop().call_soon(cluster.change, name, down)

    cluster = Cluster(dies)
    cluster.add("one")
    assert await leave_nodes(cluster, "ours", AGENTS, 60) == ("one",)
    assert cluster.marks() == {"one": set()}


async def test_agents_that_do_not_manage_are_given_up_at_the_deadline() -> None:
    cluster = Cluster(lambda cluster, name: None)
    cluster.add("one")
    assert await leave_nodes(cluster, "ours", AGENTS, 0.05) == ("one",)
    assert cluster.marks() == {"one": set()}
