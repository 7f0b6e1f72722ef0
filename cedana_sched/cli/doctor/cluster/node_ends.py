"""Check that the ends of nodes are announced: by notices of the nodes' cloud, and by their kubelets' shutdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import COMPONENT, OURS, Installation
from cedana_sched.cli.doctor.cluster.release_settings import NO_PROVIDER, read_settings
from cedana_sched.cluster.configuration import AUTO
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.graceful_node_shutdown import seconds_for_pods
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.objects.node_interruption import InterruptionSource

CHECK: Final = "ends of nodes"
MOST_KUBELETS: Final = 50
"""Nodes whose kubelets are called, one after the other."""
PROVIDERS_BY_SCHEME: Final[Mapping[str, InterruptionSource]] = {
    "aws": InterruptionSource.AWS,
    "gce": InterruptionSource.GCP,
    "azure": InterruptionSource.AZURE,
}
"""Values of the setting `provider` of agents, by the scheme of a node's `providerID`."""
_SHUTDOWN: Final = (
    "set shutdownGracePeriod in the kubelets' configuration: see Shutdown of a node in docs/operations.md"
)


class _NodeSpec(msgspec.Struct, frozen=True):
    provider_id: str = msgspec.field(name="providerID", default="")


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()


async def check_notices(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check that agents read the notices of their nodes' clouds, if the adapter `kubernetes` acts on them."""
    settings = await read_settings(reads, one)
    if "kubernetes" not in settings.adapters:
        return [Finding(CHECK, Level.OK, "not checked: without the adapter kubernetes no pod is saved from them")]
    having = await _list_nodes_with_agent(reads, one)
    nodes = [node for node in await reads.read_objects(NODES, into=_Node) if node.metadata.name in having]
    provider, of_cloud = settings.provider, dict[str, list[str]]()
    for node in nodes:
        cloud = PROVIDERS_BY_SCHEME.get(node.spec.provider_id.partition(":")[0])
        if cloud is not None and provider not in {cloud, AUTO}:
            of_cloud.setdefault(cloud, []).append(node.metadata.name)
    what = "no notices are read" if provider == NO_PROVIDER else f"notices of {provider} are read"
    wanted = next(iter(of_cloud), "") if len(of_cloud) == 1 and provider == NO_PROVIDER else AUTO
    remedy = f"upgrade the release with --set agent.interruptions.provider={wanted}"
    found = [
        Finding(
            CHECK,
            Level.WARN,
            f"agent.interruptions.provider is {provider!r}, so {what}, and {len(names)} nodes are of {cloud}:"
            f" {summarize_names(names)}",
            remedy,
        )
        for cloud, names in sorted(of_cloud.items())
    ]
    return found or [
        Finding(CHECK, Level.OK, f"agent.interruptions.provider is {provider!r}, as {len(nodes)} nodes need")
    ]


async def check_shutdowns(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check that kubelets give pods time in a shutdown, if the adapter `kubernetes` has them saved in it."""
    if "kubernetes" not in (await read_settings(reads, one)).adapters:
        return []
    called = sorted(await _list_nodes_with_agent(reads, one))[:MOST_KUBELETS]
    shortest, without, unread = dict[str, float](), list[str](), list[str]()
    for node in called:
        configuration = await reads.read_kubelet_configuration(node)
        try:
            if configuration is None:
                unread.append(node)
            elif (seconds := seconds_for_pods(configuration)) is None:
                without.append(node)
            else:
                shortest[node] = seconds
        except ValueError:  # no kubelet starts with it
            unread.append(node)
    found: list[Finding] = []
    if without:
        message = (
            f"the kubelets of {len(without)} of {len(called)} nodes give pods no time when their node is shut down, so"
            f" that pods end unsaved: {summarize_names(without)}"
        )
        found.append(Finding(CHECK, Level.WARN, message, _SHUTDOWN))
    if unread:
        message = f"unknown: the configuration of the kubelets of {summarize_names(unread)} cannot be read"
        found.append(Finding(CHECK, Level.WARN, message, "see whether the nodes are ready"))
    if found or not called:
        return found
    text = f"the kubelets of {len(called)} nodes give pods {min(shortest.values()):.0f} s or more in a shutdown"
    return [Finding(CHECK, Level.OK, text)]


async def _list_nodes_with_agent(reads: ClusterReader, one: Installation) -> set[str]:
    pods = await reads.read_objects(PODS, one.namespace, labels=f"{OURS},{COMPONENT}=agent", into=Pod)
    return {pod.spec.node_name for pod in pods if pod.spec.node_name}
