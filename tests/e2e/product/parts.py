"""Ways in which a part of the product dies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, is_gone, wait_for, wait_for_all
from tests.cluster.cluster import Cluster
from tests.e2e.product.installation import AGENT, COORDINATOR, HOLDS, WEBHOOKS, is_on_every_node
from tests.e2e.product.rendering import NAMESPACE

ALL = ("coordinator", "webhooks", "agent")
Kill = Callable[[Cluster, Api, str], Awaitable[None]]


async def delete_pods(cluster: Cluster, api: Api, component: str) -> None:
    """All pods of a component are gone from one moment to the next, as after the loss of their node."""
    await delete_all(cluster, api, NAMESPACE, _selector(component))


async def kill_processes(cluster: Cluster, api: Api, component: str) -> None:
    """All processes of a component get SIGKILL, as from the kernel when memory runs out; their pods stay."""
    await signal_all(cluster, api, NAMESPACE, _selector(component))


async def delete_all(cluster: Cluster, api: Api, namespace: str, selector: str) -> None:
    """All these pods, of anybody, are gone from one moment to the next."""
    del cluster
    for pod in await api.objects("v1", "Pod", namespace, selector=selector):
        await api.delete("v1", "Pod", pod["metadata"]["name"], namespace, grace=0)


async def restart_kubelets(cluster: Cluster, api: Api, component: str) -> None:
    """The kubelets of all nodes are started anew."""
    del api, component
    await _restart(cluster, "kubelet")


async def restart_containerds(cluster: Cluster, api: Api, component: str) -> None:
    """Containerd is started anew on all nodes."""
    del api, component
    await _restart(cluster, "containerd")


async def _restart(cluster: Cluster, service: str) -> None:
    async with asyncio.TaskGroup() as group:
        for node in cluster.nodes.values():
            group.create_task(node.restart(service))


async def replace_agents(cluster: Cluster, api: Api, component: str) -> None:
    """A rollout of the DaemonSet begins, as with an agent of another version."""
    del cluster, component
    template = {"metadata": {"annotations": {"tests.cluster/rollout": secrets.token_hex(4)}}}
    await api.patch("apps/v1", "DaemonSet", AGENT, {"spec": {"template": template}}, NAMESPACE)


async def signal_all(cluster: Cluster, api: Api, namespace: str, selector: str, signal: str = "SIGKILL") -> None:
    """All first processes of these pods' containers, of anybody, get a signal."""
    for pod in await api.objects("v1", "Pod", namespace, selector=selector):
        node = cluster.nodes[pod["spec"]["nodeName"]]
        for status in pod["status"].get("containerStatuses", ()):
            if "running" in status["state"]:
                name = status["containerID"].removeprefix("containerd://")
                await node.run("ctr", "--namespace=k8s.io", "task", "kill", f"--signal={signal}", name)


async def renew(api: Api) -> None:
    """Replace pods whose processes have died before: the kubelet lets each next start of theirs wait longer."""
    if await renew_all(api, NAMESPACE, f"app.kubernetes.io/component in ({','.join(ALL)})"):
        await whole(api)


async def renew_all(api: Api, namespace: str, selector: str) -> bool:
    """The same for these pods, of anybody; returns whether there were any. The new ones need not be ready yet."""
    worn: list[str] = []
    for pod in await api.objects("v1", "Pod", namespace, selector=selector):
        if any(status["restartCount"] for status in pod["status"].get("containerStatuses", ())):
            worn.append(pod["metadata"]["name"])
            await api.delete("v1", "Pod", worn[-1], namespace)
    for name in worn:
        await wait_for(api, "v1", "Pod", name, is_gone, namespace=namespace)
    return bool(worn)


async def whole(api: Api, *, within: float = 120) -> None:
    """Wait until every part is ready again."""
    for name in (COORDINATOR, WEBHOOKS):
        await wait_for(api, "apps/v1", "Deployment", name, _is_ready, namespace=NAMESPACE, within=within)
    for name in (AGENT, HOLDS):
        await _retry_creations(api, name)
        await wait_for(api, "apps/v1", "DaemonSet", name, is_on_every_node, namespace=NAMESPACE, within=within)
    for component in ALL:
        await wait_for_all(
            api, "v1", "Pod", lambda pods: bool(pods) and all(map(has_condition("Ready"), pods)),
            namespace=NAMESPACE, selector=_selector(component), within=within,
        )  # fmt: skip


async def _retry_creations(api: Api, name: str) -> None:
    """Have Kubernetes' controller create a DaemonSet's pods now, as it does after each change of the DaemonSet.

    After refusals, such as by Kueue's webhook for pods while it is away, it waits longer and longer, up to 16 minutes.
    """
    change = {"metadata": {"annotations": {"tests.cluster/retry": secrets.token_hex(4)}}}
    await api.patch("apps/v1", "DaemonSet", name, change, NAMESPACE)


def _selector(component: str) -> str:
    return f"app.kubernetes.io/component={component}"


def _is_ready(deployment: Object) -> bool:
    status = deployment.get("status", {})
    return bool(status.get("readyReplicas", 0) == status.get("replicas", 0) == deployment["spec"]["replicas"])
