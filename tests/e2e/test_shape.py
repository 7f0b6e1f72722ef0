"""The cluster has the shape that its kind config says."""

from __future__ import annotations

import pytest

from cedana_sched.local.quantities import parse_memory
from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod

_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


async def _nodes(api: Api) -> dict[str, Object]:
    """The real nodes, by name."""
    return {node["metadata"]["name"]: node for node in await api.objects("v1", "Node", selector="type!=kwok")}


async def test_nodes_have_their_labels_and_taints(cluster: Cluster, api: Api) -> None:
    found = await _nodes(api)

    assert set(found) == set(cluster.nodes)
    for name, node in cluster.nodes.items():
        taints = {
            (taint["key"], taint.get("value", ""), taint["effect"]) for taint in found[name]["spec"].get("taints", ())
        }
        assert taints == {(taint.key, taint.value, taint.effect) for taint in node.shape.taints}
        assert node.shape.labels.items() <= found[name]["metadata"]["labels"].items()
        assert (_CONTROL_PLANE in found[name]["metadata"]["labels"]) == (node.shape.role == "control-plane")


async def test_nodes_have_the_capacity_that_they_pretend(cluster: Cluster, api: Api) -> None:
    found = await _nodes(api)

    for name, node in cluster.nodes.items():
        capacity, wanted = found[name]["status"]["capacity"], node.shape.capacity
        if wanted.cpu is not None:
            assert capacity["cpu"] == str(wanted.cpu)
        if wanted.memory is not None:
            assert parse_memory("capacity", capacity["memory"]) == wanted.memory
        assert {resource: str(count) for resource, count in wanted.extended.items()}.items() <= capacity.items()


@pytest.mark.extended_resources
async def test_extended_resource_takes_a_pod_to_the_node_that_has_it(namespace: Namespace, toolbox: str) -> None:
    [node] = [node for node in namespace.cluster.nodes.values() if node.shape.capacity.extended]
    [resource] = node.shape.capacity.extended
    tolerations = [{"key": taint.key, "operator": "Exists"} for taint in node.shape.taints]

    await namespace.apply(
        pod("anywhere-else", container(toolbox, "sleep", "1000")),
        pod(
            "accelerated",
            container(toolbox, "sleep", "1000", resources={"limits": {resource: "1"}}),
            tolerations=tolerations,
        ),
    )

    assert (await namespace.ready("accelerated"))["spec"]["nodeName"] == node.name
    assert (await namespace.ready("anywhere-else"))["spec"]["nodeName"] != node.name
