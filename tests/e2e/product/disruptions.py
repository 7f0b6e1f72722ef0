"""Whatever takes the pods of a test away from a node, and what must be so before and afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cedana_sched.model.objects.names import API_VERSION, POLICY
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for, wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.taints import EVICTING
from tests.e2e.product import eviction_calls, parts, spot
from tests.e2e.product.cordoning import cordoned, drained
from tests.e2e.product.following import Following
from tests.e2e.product.logind import graceful_shutdown_enabled, remove_ended_pods
from tests.e2e.product.lost_nodes import node_of_store, out_of_service, switched_off
from tests.e2e.product.owners import LABEL, NAME, continued, continued_from_snapshot, counting_pod
from tests.e2e.product.policies import OFTEN, own_policy
from tests.e2e.product.urgency import urgency
from tests.servers.metadata import FakeAws, FakeAzure, FakeGcp

SELECTOR: Final = f"{LABEL}={NAME}"


@dataclass(frozen=True)
class Disruption:
    """One way in which pods are taken away.

    Args:
        takes: enters when the pods of the test are to go from a node, leaves when it is as it was before.
        reason: of the Checkpoints.
        spares_store: whether it would also take the store, if its node had that.
        policy: of the namespace; without one there are no periodic snapshots.
        continued: waits until the second pod counts on, and judges what it has said.
    """

    takes: Callable[[Namespace, str], AbstractAsyncContextManager[object]]
    reason: str
    spares_store: bool = False
    policy: Mapping[str, object] = field(default_factory=dict)
    continued: Callable[[Namespace, Following], Awaitable[None]] = continued

    @asynccontextmanager
    async def awaited_by(self, namespace: Namespace, owner: Object) -> AsyncIterator[Following]:
        """The owner's pod, which has counted for a while, where it can be taken away and its work continue."""
        async with AsyncExitStack() as stack:
            if self.policy:
                policy = await stack.enter_async_context(own_policy(namespace, **self.policy))
                await namespace.kubectl("annotate", "namespace", namespace.name, f"{POLICY}={policy}")
            async with AsyncExitStack() as beginning:
                if self.spares_store:
                    await beginning.enter_async_context(cordoned(namespace, await node_of_store(namespace)))
                following = await stack.enter_async_context(counting_pod(namespace, owner))
            if self.policy:
                await wait_for_all(namespace.api, API_VERSION, "Checkpoint", _has_two_ready, namespace=namespace.name)
            yield following


def _has_two_ready(checkpoints: list[Object]) -> bool:
    return [one.get("status", {}).get("phase") for one in checkpoints].count("Ready") >= 2


@asynccontextmanager
async def tainted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """A taint that evicts whoever does not tolerate it."""
    await namespace.kubectl("taint", "node", node, f"{EVICTING}=now:NoExecute")
    try:
        yield
    finally:
        await namespace.kubectl("taint", "node", node, f"{EVICTING}-")


@asynccontextmanager
async def deleted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """`kubectl delete pod`."""
    async with cordoned(namespace, node):
        await namespace.kubectl("delete", "pod", f"--selector={SELECTOR}", "--wait=false")
        yield


@asynccontextmanager
async def preempted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """A pod of a higher priority that takes all that the node has left, and the victim's place."""
    allocatable = (await namespace.api.get("v1", "Node", node))["status"]["allocatable"]
    requests = {"cpu": await _all_but_others(namespace, node, allocatable["cpu"])}
    async with urgency(namespace) as priority:
        urgent = pod(
            "urgent",
            container(await _image(namespace), "sleep", "inf", resources={"requests": requests}),
            priorityClassName=priority,
            nodeSelector={"kubernetes.io/hostname": node},
        )
        try:
            await namespace.apply(urgent)
            await namespace.ready("urgent", within=120)
            yield
        finally:
            await namespace.delete("v1", "Pod", "urgent")


@asynccontextmanager
async def shut_down(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """The node begins to shut down: the kubelet ends its pods without deleting them. At the end it stays after all."""
    api, machine = namespace.api, namespace.cluster.nodes[node]
    periods = {"shutdownGracePeriod": "1m30s", "shutdownGracePeriodCriticalPods": "30s"}
    async with graceful_shutdown_enabled(machine, **periods) as logind:
        await _has_admitted_its_pods(namespace, node)
        await logind.begin_shutdown()
        yield
        await logind.wait_said("released")
        await logind.cancel_shutdown()
    await remove_ended_pods(api, machine)
    await parts.whole(api)
    await wait_for(api, "v1", "Node", node, spot.is_left_alone)


async def _has_admitted_its_pods(namespace: Namespace, node: str) -> None:
    """Wait until a restarted kubelet runs a new pod: it ends no pod that it has not admitted since its start."""
    main = container(await _image(namespace), "true")
    await namespace.apply(pod("admitted", main, nodeName=node, tolerations=[{"operator": "Exists"}]))
    await namespace.wait("v1", "Pod", "admitted", lambda body: body["status"].get("phase") == "Succeeded")


@asynccontextmanager
async def lost(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """The node loses its power, and an admin says that it does not come back; at the end it does."""
    async with switched_off(namespace, node), out_of_service(namespace, node):
        yield
    await parts.whole(namespace.api)


DISRUPTIONS: Final[dict[str, Disruption]] = {
    "preemption": Disruption(preempted, "PreemptionByScheduler"),
    "drain": Disruption(drained, "EvictionByEvictionAPI"),
    "eviction": Disruption(partial(eviction_calls.evicted, selector=SELECTOR), "EvictionByEvictionAPI"),
    "taint": Disruption(tainted, "DeletionByTaintManager", spares_store=True),
    "deletion": Disruption(deleted, "DeletionOfPod"),
    "shutdown": Disruption(shut_down, "NodeShutdown", spares_store=True),
    "AWS": Disruption(partial(spot.announced, FakeAws), "NodeTermination"),
    "GCP": Disruption(partial(spot.announced, FakeGcp), "NodeTermination"),
    "Azure": Disruption(partial(spot.announced, FakeAzure), "NodeTermination"),
    "loss": Disruption(lost, "Interval", spares_store=True, policy=OFTEN, continued=continued_from_snapshot),
}


async def _image(namespace: Namespace) -> str:
    """Of the test's own pods."""
    first, *_ = await namespace.pods(SELECTOR)
    return str(first["spec"]["containers"][0]["image"])


async def _all_but_others(namespace: Namespace, node: str, allocatable: str) -> str:
    """The CPU that is free on a node once the test's own pods are gone."""
    pods = [
        one
        for one in await namespace.api.objects("v1", "Pod", None)
        if one["spec"].get("nodeName") == node and one["status"].get("phase") in {"Running", "Pending"}
    ]
    others = [one for one in pods if one["metadata"]["namespace"] != namespace.name]
    taken = sum(
        _millis(each.get("resources", {}).get("requests", {}).get("cpu", "0"))
        for one in others
        for each in one["spec"]["containers"]
    )
    return f"{_millis(allocatable) - taken - 50}m"


def _millis(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else int(float(quantity) * 1000)
