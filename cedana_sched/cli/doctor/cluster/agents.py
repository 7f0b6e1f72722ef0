"""Check that every node has a ready agent: workloads on other nodes are not saved."""

from __future__ import annotations

from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import COMPONENT, OURS, Installation
from cedana_sched.kube.builtin_kinds import Node, Pod
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.objects.names import NODE_PREPARED

CHECK: Final = "agents"
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
"""Taint of nodes that run no workloads."""
_LINUX: Final = "kubernetes.io/os=linux"


async def examine(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for nodes without an agent, and for agents and `prestop-proxy` pods that are not ready."""
    pods = await reads.read_objects(PODS, one.namespace, labels=OURS, into=Pod)
    nodes = await reads.read_objects(NODES, labels=_LINUX, into=Node)
    working = {node.metadata.name: node for node in nodes if not _is_control_plane(node)}
    have = {name: _readiness_by_node(pods, name) for name in ("agent", "prestop-proxy")}
    found: list[Finding] = []
    if absent := working.keys() - have["agent"].keys():
        message = f"{len(absent)} of {len(working)} nodes have no agent, and what runs there is not saved: "
        remedy = "see agent.nodeSelector and agent.affinity of the chart, or keep protected pods away from them"
        level = Level.WARN if have["agent"] else Level.FAIL
        found.append(Finding(CHECK, level, message + summarize_names(absent), remedy))
    for name, by_node in have.items():
        if dead := {node for node, ready in by_node.items() if not ready}:
            message = f"the {name} pod is not ready on {len(dead)} of {len(by_node)} nodes: {summarize_names(dead)}"
            remedy = f"kubectl --namespace {one.namespace} get pods --output wide --selector {COMPONENT}={name}"
            found.append(Finding(CHECK, Level.FAIL if len(dead) == len(by_node) else Level.WARN, message, remedy))
    ready = {node for node, is_ready in have["agent"].items() if is_ready}
    if bare := {node for node in ready & working.keys() if working[node].metadata.labels.get(NODE_PREPARED) != "true"}:
        message = (
            f"agents run on nodes that they have not prepared, to which no saved pod returns: {summarize_names(bare)}"
        )
        found.append(Finding(CHECK, Level.WARN, message, "the logs of their agents say what is missing"))
    return found or [Finding(CHECK, Level.OK, f"each of {len(working)} nodes for workloads has one that is ready")]


def _is_control_plane(node: Node) -> bool:
    return any(taint.key == _CONTROL_PLANE for taint in node.spec.taints)


def _readiness_by_node(pods: tuple[Pod, ...], component: str) -> dict[str, bool]:
    """Return for each node whether a pod of the component is ready; during a rollout a node may have two."""
    there: dict[str, bool] = {}
    for pod in pods:
        if pod.metadata.labels.get(COMPONENT) == component and pod.spec.node_name:
            there[pod.spec.node_name] = pod.ready or there.get(pod.spec.node_name, False)
    return there
