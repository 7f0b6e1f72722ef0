"""Whatever takes a pod away, and whatever controls it: its work goes on in another pod, without gap or repetition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, PROTECT
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, wait_for_all
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.cluster.taints import STAYS
from tests.e2e.product.cordoning import cordoned, drained
from tests.e2e.product.disruptions import DISRUPTIONS, SELECTOR
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.owners import (
    LABEL,
    NAME,
    OWNERS,
    assert_never_twice,
    continued,
    counting_pod,
    deployment,
    wait_counts,
)
from tests.e2e.product.policies import OFTEN
from tests.e2e.product.spot import INTERRUPTIONS

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape]

_EACH_TIME: Final = {
    "preemption": "Indexed Job",
    "drain": "StatefulSet",
    "eviction": "JobSet",
    "taint": "Deployment",
    "deletion": "Job",
    "shutdown": "StatefulSet",
    "AWS": "Job",
    "GCP": "Deployment",
    "Azure": "Indexed Job",
    "loss": "Job",
}
"""The cell of each row that is not exhaustive."""
_BUDGETED: Final = ("drain", "eviction")
"""What keeps to PodDisruptionBudgets."""
_SELECTED: Final = {"matchLabels": {LABEL: NAME}}


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_kubernetes(release: Product) -> Product:
    """The product, with the adapter that needs no scheduler."""
    tolerant = {"tolerations": [*STAYS]}
    interruptions = {"interruptions": INTERRUPTIONS}
    await release.ensure(kubernetes={"enabled": True}, agent=interruptions, coordinator=tolerant, webhooks=tolerant)
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, installed_with_kubernetes: Product) -> Namespace:
    """A namespace that protects all of its pods."""
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


async def _made_by(owner: str, namespace: Namespace, toolbox: str, steps: Steps, replicas: int = 1) -> Object:
    """One such owner; its controller is on the cluster."""
    if owner == "JobSet":
        await install(namespace.cluster, ["jobset"], steps)
    return OWNERS[owner](toolbox, replicas=replicas)


def _cells(*rows: str, each_time: dict[str, str]) -> list[Any]:
    return [
        pytest.param(row, owner, marks=() if each_time.get(row) == owner else pytest.mark.exhaustive)
        for row in rows
        for owner in OWNERS
    ]


@pytest.mark.matrix
@pytest.mark.parametrize(("row", "owner"), _cells(*DISRUPTIONS, each_time=_EACH_TIME))
async def test_work_goes_on_in_another_pod(
    row: str, owner: str, protected: Namespace, toolbox: str, steps: Steps
) -> None:
    disruption = DISRUPTIONS[row]
    body = await _made_by(owner, protected, toolbox, steps)
    async with disruption.awaited_by(protected, body) as following:
        async with disruption.takes(protected, following.nodes[0][0]):
            await disruption.continued(protected, following)
        assert following.nodes[0][0] != following.nodes[0][1]
        await assert_never_twice(protected, following)
    checkpoints = await _checkpoints(protected)
    assert ("Ready", disruption.reason) in checkpoints
    assert len(checkpoints) == 1 or disruption.policy, checkpoints


@pytest.mark.exhaustive
async def test_node_that_is_lost_keeps_no_pod_whose_policy_keeps_pods_running(
    protected: Namespace, toolbox: str
) -> None:
    policy = {**OFTEN, "onCheckpointFailure": "KeepRunning"}
    disruption = replace(DISRUPTIONS["loss"], policy=policy)
    async with disruption.awaited_by(protected, deployment(toolbox)) as following:
        async with disruption.takes(protected, following.nodes[0][0]):
            await disruption.continued(protected, following)
        await assert_never_twice(protected, following)


@pytest.mark.exhaustive
async def test_work_goes_on_over_three_drains(protected: Namespace, toolbox: str) -> None:
    async with counting_pod(protected, deployment(toolbox)) as following:
        for drains in range(1, 4):
            async with drained(protected, following.nodes[0][-1]):
                await continued(protected, following, pods=1 + drains)
    nodes = following.nodes[0]
    assert all(before != after for before, after in pairwise(nodes)), nodes


@pytest.mark.matrix
@pytest.mark.parametrize(("row", "owner"), _cells(*_BUDGETED, each_time={"drain": "Deployment"}))
async def test_no_more_pods_are_taken_at_a_time_than_their_budget_allows(
    row: str, owner: str, protected: Namespace, toolbox: str, steps: Steps
) -> None:
    node, other, *_ = protected.cluster.nodes
    async with cordoned(protected, other):
        await protected.apply(_budget(), await _made_by(owner, protected, toolbox, steps, replicas=2))
        await wait_for_all(protected.api, "v1", "Pod", _are_two_ready, namespace=protected.name, selector=SELECTOR)
        pods = await protected.pods(SELECTOR, count=2)
        assert {one["spec"]["nodeName"] for one in pods} == {node}
    async with DISRUPTIONS[row].takes(protected, node):
        await wait_for_all(
            protected.api,
            "v1",
            "Pod",
            _are_two_ready_on(other),
            namespace=protected.name,
            selector=SELECTOR,
            within=120,
        )
    checkpoints = await protected.api.objects(API_VERSION, "Checkpoint", protected.name)
    times = sorted((one["spec"]["creationTime"], one["status"]["completionTime"]) for one in checkpoints)
    assert len(times) == 2
    assert times[0][1] < times[1][0], "the second was frozen before the first was evicted"
    assert await _checkpoints(protected) == {("Ready", DISRUPTIONS[row].reason)}


async def test_pod_that_its_budget_keeps_is_never_frozen(protected: Namespace, toolbox: str) -> None:
    await protected.apply(_budget())
    async with counting_pod(protected, deployment(toolbox)) as following:
        await protected.wait("policy/v1", "PodDisruptionBudget", NAME, lambda one: one["status"]["currentHealthy"] == 1)
        with pytest.raises(ClusterError, match="global timeout reached"):
            async with drained(protected, following.nodes[0][0], within=3):
                pass
    assert await protected.api.objects(API_VERSION, "Checkpoint", protected.name) == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row == "drain" else pytest.mark.exhaustive)
        for row in ("preemption", "drain", "eviction", "taint", "deletion", "shutdown")
    ],
)
async def test_pod_that_is_not_opted_in_is_taken_away_as_without_us(
    row: str, namespace: Namespace, installed_with_kubernetes: Product, toolbox: str, audit: Audit
) -> None:
    disruption = DISRUPTIONS[row]
    async with disruption.awaited_by(namespace, deployment(toolbox)) as following:
        async with disruption.takes(namespace, following.nodes[0][0]):
            await wait_counts(following)
        counts = following.by_pod(0)[1]
        assert counts == [str(number) for number in range(len(counts))], "it began anew"
    assert of_ours(audit, namespace.name) == []


def _budget() -> Object:
    """One of two pods stays; Jobs may have no other kind of budget."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME},
        "spec": {"minAvailable": 1, "selector": _SELECTED},
    }


def _are_two_ready(pods: list[Object]) -> bool:
    return len(pods) == 2 and all(map(has_condition("Ready"), pods))


def _are_two_ready_on(node: str) -> Callable[[list[Object]], bool]:
    def check(pods: list[Object]) -> bool:
        ready = [one for one in pods if one["spec"].get("nodeName") == node and has_condition("Ready")(one)]
        return len(ready) == 2

    return check


async def _checkpoints(namespace: Namespace) -> set[tuple[str, str]]:
    """What became of the checkpoints, and why they were made; those of an interval may be in progress."""
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    return {(one["status"]["phase"], one["spec"]["reason"]) for one in checkpoints}
