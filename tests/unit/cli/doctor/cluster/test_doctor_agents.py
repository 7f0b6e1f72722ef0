"""Whether the doctor names nodes on which nothing is saved."""

from __future__ import annotations

from cedana_sched.cli.doctor.cluster import agents
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.objects.names import NODE_PREPARED

from .cluster_to_look_at import NAMESPACE, Cluster, ours


def node(name: str, *, taint: str = "", prepared: bool = True, system: str = "linux") -> Object:
    labels = {"kubernetes.io/os": system, **({NODE_PREPARED: "true"} if prepared else {})}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [{"key": taint}] if taint else []}}


def pod(component: str, where: str, *, ready: bool = True) -> Object:
    metadata = {"name": f"{component}-{where}-{ready}", "namespace": NAMESPACE, "labels": ours(component)}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "spec": {"nodeName": where}, "status": {"conditions": conditions}}


def both(*where: str) -> list[Object]:
    return [pod(component, one) for one in where for component in ("agent", "prestop-proxy")]


async def test_ready_agents_on_all_nodes_for_workloads_are_well() -> None:
    cluster = Cluster().put(NODES, node("a"), node("b"), node("windows", system="windows"))
    cluster.put(NODES, node("master", taint="node-role.kubernetes.io/control-plane", prepared=False))
    cluster.put(PODS, *both("a", "b"), pod("webhooks", "master"))
    assert await cluster.findings(agents.examine) == ["ok each of 2 nodes for workloads has one that is ready"]


async def test_nodes_without_an_agent_are_named() -> None:
    cluster = Cluster().put(NODES, node("a"), node("b"), node("gpu", taint="nvidia.com/gpu")).put(PODS, *both("a"))
    assert await cluster.findings(agents.examine) == [
        "warn 2 of 3 nodes have no agent, and what runs there is not saved: b, gpu"
    ]


async def test_no_agent_at_all_is_a_failure() -> None:
    assert (await Cluster().put(NODES, node("a")).findings(agents.examine))[0].startswith("fail 1 of 1 nodes")


async def test_pods_that_are_not_ready_are_named_with_their_nodes() -> None:
    cluster = Cluster().put(NODES, node("a"), node("b"))
    cluster.put(PODS, pod("agent", "a"), pod("agent", "b", ready=False), pod("prestop-proxy", "a", ready=False))
    assert await cluster.findings(agents.examine) == [
        "warn the agent pod is not ready on 1 of 2 nodes: b",
        "fail the prestop-proxy pod is not ready on 1 of 1 nodes: a",
    ]


async def test_an_agent_that_is_being_replaced_is_not_missed() -> None:
    cluster = Cluster().put(NODES, node("a")).put(PODS, *both("a"), pod("agent", "a", ready=False))
    assert await cluster.findings(agents.examine) == ["ok each of 1 nodes for workloads has one that is ready"]


async def test_a_node_that_its_agent_could_not_prepare_is_named() -> None:
    cluster = Cluster().put(NODES, node("a", prepared=False)).put(PODS, *both("a"))
    assert await cluster.findings(agents.examine) == [
        "warn agents run on nodes that they have not prepared, to which no saved pod returns: a"
    ]
