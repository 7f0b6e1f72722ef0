"""What a test may do to a node, and what the cluster and its pods see of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.nodes.node import Node

_ADDRESS = "import socket as s; u = s.socket(s.AF_INET, s.SOCK_DGRAM); u.connect(('{}', 9)); print(u.getsockname()[0])"


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The last one: add-ons begin on the others."""
    return list(cluster.nodes.values())[-1]


@pytest.fixture
def sleeper(toolbox: str, node: Node) -> Object:
    return pod("sleeper", container(toolbox, "sleep", "1000"), nodeName=node.name, restartPolicy="Always")


@asynccontextmanager
async def _restored(api: Api, node: Node, restore: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """The node as it was, whatever a test does to it: Ready, and without the taints of one that is not."""
    taints = {taint.key for taint in node.shape.taints}

    def is_whole(body: Object) -> bool:
        return node.is_ready(body) and {taint["key"] for taint in body["spec"].get("taints", ())} <= taints

    try:
        yield
    finally:
        await restore()
        await wait_for(api, "v1", "Node", node.name, is_whole)


def _container(body: Object) -> Object:
    status: Object = body["status"]["containerStatuses"][0]
    return status


async def _first_process(node: Node, container_id: str) -> str:
    """The number of a container's first process on its node."""
    listed = await node.run("ctr", "--namespace=k8s.io", "tasks", "list")
    found = {line.split()[0]: line.split()[1] for line in listed.splitlines()[1:]}
    return found[container_id.removeprefix("containerd://")]


@pytest.mark.any_shape
async def test_containers_outlive_restarts_of_what_started_them(
    namespace: Namespace, node: Node, sleeper: Object, toolbox: str
) -> None:
    await namespace.apply(sleeper)
    before = _container(await namespace.ready("sleeper"))
    first_process = await _first_process(node, before["containerID"])

    for service in ("containerd", "kubelet", "kube-proxy"):
        await node.restart(service)

    await namespace.apply(pod("next", container(toolbox, "sleep", "1000"), nodeName=node.name))
    await namespace.ready("next")  # the new kubelet knows its pods
    assert await namespace.exec("sleeper", "hostname") == "sleeper\n"
    after = _container(await namespace.ready("sleeper"))
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], before["restartCount"])
    assert await _first_process(node, after["containerID"]) == first_process


@pytest.mark.any_shape
async def test_cut_node_is_lost_until_it_rejoins(namespace: Namespace, node: Node, sleeper: Object) -> None:
    await namespace.apply(sleeper)
    before = _container(await namespace.ready("sleeper"))

    async with _restored(namespace.api, node, node.rejoin):
        await node.cut()
        await wait_for(namespace.api, "v1", "Node", node.name, has_condition("Ready", "Unknown"))

    assert _container(await namespace.ready("sleeper"))["containerID"] == before["containerID"]


@pytest.mark.exhaustive  # a node that is cut off is tried each time
@pytest.mark.any_shape
async def test_paused_node_is_lost_until_it_goes_on(namespace: Namespace, node: Node, sleeper: Object) -> None:
    await namespace.apply(sleeper)
    before = _container(await namespace.ready("sleeper"))

    async def resume() -> None:
        node.resume()

    async with _restored(namespace.api, node, resume):
        node.pause()
        await wait_for(namespace.api, "v1", "Node", node.name, has_condition("Ready", "Unknown"))

    assert _container(await namespace.ready("sleeper"))["containerID"] == before["containerID"]


@pytest.mark.any_shape
async def test_killed_node_is_lost_and_comes_back_with_its_pods(
    namespace: Namespace, node: Node, sleeper: Object
) -> None:
    await namespace.apply(sleeper)
    before = _container(await namespace.ready("sleeper"))

    async def start() -> None:
        await namespace.cluster.start_node(node)

    async with _restored(namespace.api, node, start):
        node.kill()
        await wait_for(namespace.api, "v1", "Node", node.name, has_condition("Ready", "Unknown"))

    def is_back(body: Object) -> bool:
        return has_condition("Ready")(body) and _container(body)["containerID"] != before["containerID"]

    await namespace.wait("v1", "Pod", "sleeper", is_back)
    assert await namespace.exec("sleeper", "hostname") == "sleeper\n"


async def test_cordoned_node_takes_no_pods(namespace: Namespace, node: Node, toolbox: str) -> None:
    async def uncordon() -> None:
        await namespace.kubectl("uncordon", node.name)

    there: Object = {
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "tolerations": [{"key": taint.key, "operator": "Exists"} for taint in node.shape.taints],
    }
    async with _restored(namespace.api, node, uncordon):
        await namespace.kubectl("cordon", node.name)
        await namespace.apply(pod("waits", container(toolbox, "sleep", "1000"), **there))
        await namespace.wait(
            "v1", "Pod", "waits", has_condition("PodScheduled", status="False", reason="Unschedulable")
        )

    assert (await namespace.ready("waits"))["spec"]["nodeName"] == node.name


async def test_namespaces_of_the_host_are_those_of_the_node(namespace: Namespace, node: Node, toolbox: str) -> None:
    privileged = container(toolbox, "sleep", "1000", securityContext={"privileged": True})
    await namespace.apply(pod("inspector", privileged, nodeName=node.name, hostPID=True, hostNetwork=True))
    inspector = await namespace.ready("inspector")

    # the names of all processes that it sees, by their numbers
    names = json.loads(
        await namespace.exec(
            "inspector",
            *("python3", "-c"),
            "import json, pathlib as p; print(json.dumps({f.parent.name: f.read_text().strip()"
            " for f in p.Path('/proc').glob('[0-9]*/comm')}))",
        )
    )
    assert names["1"] == "tini"
    assert {"containerd", "kubelet", "kube-proxy", "sleep"} <= set(names.values())
    assert not {"etcd", "kube-apiserver", "pytest"} & set(names.values())  # of the control plane, of this host
    assert list(names.values()).count("kubelet") == 1  # of other nodes

    assert inspector["status"]["podIP"] == str(node.address.ip)
    gateway = node.address.network[1]
    assert (await namespace.exec("inspector", "python3", "-c", _ADDRESS.format(gateway))).strip() == str(
        node.address.ip
    )
