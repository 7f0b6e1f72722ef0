"""Whatever takes a pod away, and whatever controls it: its work goes on in another pod, without gap or repetition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, PROTECT
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.patience import patient
from tests.e2e.product.cordoning import cordoned, drained
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.owners import LABEL, NAME, OWNERS, continued, counting_pod, deployment

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape]

TAINT: Final = "tests.cluster/goes"
STAYS: Final = [{"key": TAINT, "operator": "Exists"}]
"""Our own components stay on a node that is tainted."""


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_kubernetes(release: Product) -> Product:
    """The product, with the adapter that needs no scheduler."""
    tolerant = {"tolerations": STAYS}
    await release.ensure(kubernetes={"enabled": True}, coordinator=tolerant, webhooks=tolerant)
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, installed_with_kubernetes: Product) -> Namespace:
    """A namespace that protects all of its pods."""
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


@asynccontextmanager
async def tainted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """A taint that evicts whoever does not tolerate it."""
    await namespace.kubectl("taint", "node", node, f"{TAINT}=now:NoExecute")
    try:
        yield
    finally:
        await namespace.kubectl("taint", "node", node, f"{TAINT}-")


@asynccontextmanager
async def deleted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """`kubectl delete pod`."""
    async with cordoned(namespace, node):
        await namespace.kubectl("delete", "pod", f"--selector={LABEL}={NAME}", "--wait=false")
        yield


@asynccontextmanager
async def preempted(namespace: Namespace, node: str) -> AsyncIterator[None]:
    """A pod of a higher priority that takes all that the node has left, and the victim's place."""
    name = f"{namespace.name}-urgent"
    allocatable = (await namespace.api.get("v1", "Node", node))["status"]["allocatable"]
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    }
    await namespace.api.apply(priority)
    requests = {"cpu": await _all_but_others(namespace, node, allocatable["cpu"])}
    urgent = pod(
        "urgent",
        container(_image_of(await namespace.pods(f"{LABEL}={NAME}")), "sleep", "inf", resources={"requests": requests}),
        priorityClassName=name,
        nodeSelector={"kubernetes.io/hostname": node},
    )
    try:
        await namespace.apply(urgent)
        await namespace.ready("urgent", within=120)
        yield
    finally:
        await namespace.delete("v1", "Pod", "urgent")
        await namespace.api.delete("scheduling.k8s.io/v1", "PriorityClass", name)


WAYS: Final[dict[str, Callable[[Namespace, str], Any]]] = {
    "drain": drained,
    "taint": tainted,
    "deletion": deleted,
    "preemption": preempted,
}
_EACH_TIME: Final = {
    ("drain", "StatefulSet"),
    ("taint", "Deployment"),
    ("deletion", "Job"),
    ("preemption", "Indexed Job"),
}


def _cells() -> list[Any]:
    return [
        pytest.param(way, owner, marks=() if (way, owner) in _EACH_TIME else pytest.mark.exhaustive)
        for way in WAYS
        for owner in OWNERS
    ]


@pytest.mark.parametrize(("way", "owner"), _cells())
async def test_work_goes_on_in_another_pod(way: str, owner: str, protected: Namespace, toolbox: str) -> None:
    body = OWNERS[owner](toolbox)
    async with counting_pod(protected, body) as following:
        async with WAYS[way](protected, following.nodes[0][0]):
            await continued(protected, following, body)
        assert following.nodes[0][0] != following.nodes[0][1]
    await _assert_saved(protected)


@pytest.mark.exhaustive
async def test_work_goes_on_over_three_drains(protected: Namespace, toolbox: str) -> None:
    body = deployment(toolbox)
    async with counting_pod(protected, body) as following:
        for drains in range(1, 4):
            async with drained(protected, following.nodes[0][-1]):
                await continued(protected, following, body, pods=1 + drains)
    nodes = following.nodes[0]
    assert all(before != after for before, after in pairwise(nodes)), nodes


async def test_drain_takes_no_more_pods_at_a_time_than_their_budget_allows(protected: Namespace, toolbox: str) -> None:
    node, other, *_ = protected.cluster.nodes
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {LABEL: NAME}}},
    }
    async with cordoned(protected, other):
        await protected.apply(budget, deployment(toolbox, replicas=2))
        await protected.wait("apps/v1", "Deployment", NAME, has_condition("Available"), within=120)
        pods = await protected.pods(f"{LABEL}={NAME}", count=2)
        assert {one["spec"]["nodeName"] for one in pods} == {node}
    async with drained(protected, node):
        await protected.wait("apps/v1", "Deployment", NAME, _has_two_ready, within=120)
    checkpoints = await protected.api.objects(API_VERSION, "Checkpoint", protected.name)
    times = sorted((one["spec"]["creationTime"], one["status"]["completionTime"]) for one in checkpoints)
    assert len(times) == 2
    assert times[0][1] < times[1][0], "the second was frozen before the first was evicted"
    await _assert_saved(protected)


async def test_pod_that_its_budget_keeps_is_never_frozen(protected: Namespace, toolbox: str) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {LABEL: NAME}}},
    }
    await protected.apply(budget)
    async with counting_pod(protected, deployment(toolbox)) as following:
        await protected.wait("policy/v1", "PodDisruptionBudget", NAME, lambda one: one["status"]["currentHealthy"] == 1)
        with pytest.raises(ClusterError, match="global timeout reached"):
            async with drained(protected, following.nodes[0][0], within=3):
                pass
    assert await protected.api.objects(API_VERSION, "Checkpoint", protected.name) == []


async def test_pod_that_is_not_opted_in_is_drained_as_without_us(
    namespace: Namespace, installed_with_kubernetes: Product, toolbox: str, audit: Audit
) -> None:
    async with counting_pod(namespace, deployment(toolbox)) as following:
        async with drained(namespace, following.nodes[0][0]):
            await asyncio.wait_for(following.said(0, len(following.lines(0)) + 10), patient(120))
        counts = following.by_pod(0)[1]
        assert counts == [str(number) for number in range(len(counts))], "it began anew"
    assert of_ours(audit, namespace.name) == []


def _has_two_ready(one: Object) -> bool:
    status = one["status"]
    return bool(status.get("readyReplicas", 0) == 2 and status.get("unavailableReplicas", 0) == 0)


async def _assert_saved(namespace: Namespace) -> None:
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}


def _image_of(pods: list[Object]) -> str:
    return str(pods[0]["spec"]["containers"][0]["image"])


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
