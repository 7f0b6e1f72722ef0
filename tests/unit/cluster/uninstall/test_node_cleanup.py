"""The uninstallation waits for agents that live, and cleans up after those that do not."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

from cedana_sched.cluster.uninstall.node_cleanup import clean_up_nodes
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched.testing.store import Change

COMPONENT = {"app.kubernetes.io/component": "agent"}
AGENTS = "app.kubernetes.io/component=agent"


class Cluster(FakeApi):
    """Nodes and agents; `agent` is called with every node that is to be left, and may answer."""

    def __init__(self, agent: Callable[[Cluster, str], None]) -> None:
        super().__init__()
        self._agent = agent
        self.store.subscribe(self._see)

    def add(self, name: str, *, ready: bool = True, agent: str | None = "Running") -> None:
        labels = {names.NODE_PREPARED: "true", names.CPU_FEATURES: "c", "zone": "a"}
        metadata = {"name": name, "uid": name, "labels": labels, "annotations": {names.NODE_FACTS: "{}"}}
        condition = {"type": "Ready", "status": str(ready)}
        self.put(NODES, {"metadata": metadata, "status": {"conditions": [condition]}})
        if agent:
            metadata = {"name": f"a-{name}", "namespace": "ours", "labels": COMPONENT}
            self.put(PODS, {"metadata": metadata, "spec": {"nodeName": name}, "status": {"phase": agent}})

    def change(self, name: str, change: Callable[[Object], None]) -> None:
        node = copy.deepcopy(self.stored(NODES, name))
        change(node)
        self.put(NODES, node)

    def clears(self, name: str) -> None:
        """As an agent does."""

        def clear(node: Object) -> None:
            node["metadata"]["labels"] = {"zone": "a"}
            node["metadata"]["annotations"] = {}

        asyncio.get_running_loop().call_soon(self.change, name, clear)

    def marks(self) -> dict[str, set[str]]:
        """Every word of ours that is still on a node."""
        return {
            node["metadata"]["name"]: {
                key for part in ("labels", "annotations") for key in node["metadata"][part] if names.GROUP in key
            }
            for node in self.all_of(NODES)
        }

    def _see(self, change: Change) -> None:
        marked = [names.UNINSTALL in ((one or {}).get("metadata") or {}).get("annotations", {}) for one in change[2:]]
        if marked == [False, True]:
            self._agent(self, change.key[2])


async def test_every_agent_that_lives_clears_its_node() -> None:
    cluster = Cluster(Cluster.clears)
    cluster.add("one")
    cluster.add("two")
    assert await clean_up_nodes(cluster, "ours", AGENTS, 60) == ()
    assert cluster.marks() == {"one": set(), "two": set()}
    assert cluster.stored(NODES, "one")["metadata"]["labels"] == {"zone": "a"}


async def test_dead_nodes_and_dead_agents_are_not_waited_for_and_lose_their_labels() -> None:
    cluster = Cluster(Cluster.clears)
    cluster.add("well")
    cluster.add("down", ready=False)
    cluster.add("bare", agent=None)
    cluster.add("stuck", agent="Pending")
    assert await clean_up_nodes(cluster, "ours", AGENTS, 60) == ("bare", "down", "stuck")
    assert set().union(*cluster.marks().values()) == set()


async def test_a_node_that_dies_meanwhile_ends_the_waiting() -> None:
    def dies(cluster: Cluster, name: str) -> None:
        def down(node: Object) -> None:
            node["status"]["conditions"][0]["status"] = "Unknown"

        asyncio.get_running_loop().call_soon(cluster.change, name, down)

    cluster = Cluster(dies)
    cluster.add("one")
    assert await clean_up_nodes(cluster, "ours", AGENTS, 60) == ("one",)
    assert cluster.marks() == {"one": set()}


async def test_agents_that_do_not_manage_are_given_up_at_the_deadline() -> None:
    cluster = Cluster(lambda cluster, name: None)
    cluster.add("one")
    assert await clean_up_nodes(cluster, "ours", AGENTS, 0.05) == ("one",)
    assert cluster.marks() == {"one": set()}
