"""Pods of a node that is gone continue from their last snapshots, whatever controls them; once, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, POLICY, PROTECT
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product import parts
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.counting import begun
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.lost_nodes import node_of_store, out_of_service, switched_off
from tests.e2e.product.owners import LABEL, NAME, OWNERS, counting_pod, deployment
from tests.e2e.product.policies import own_policy

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape, pytest.mark.exhaustive]

_OFTEN: Final = {"intervalSeconds": 2, "maxFrozenPercent": 50, "retention": {"keepLast": 2}}


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, release: Product) -> Namespace:
    """A namespace that protects all of its pods."""
    await release.ensure(kubernetes={"enabled": True})
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


@asynccontextmanager
async def _saved_while_it_runs(namespace: Namespace, owner: Object, **policy: object) -> AsyncIterator[Following]:
    """The owner's pod, which has a second snapshot, on a node that does not have the store."""
    async with own_policy(namespace, **_OFTEN, **policy) as name, AsyncExitStack() as stack:
        await namespace.kubectl("annotate", "namespace", namespace.name, f"{POLICY}={name}")
        async with cordoned(namespace, await node_of_store(namespace)):
            following = await stack.enter_async_context(counting_pod(namespace, owner))
        await wait_for_all(namespace.api, API_VERSION, "Checkpoint", _has_two_ready, namespace=namespace.name)
        yield following


def _has_two_ready(checkpoints: list[Object]) -> bool:
    return [one.get("status", {}).get("phase") for one in checkpoints].count("Ready") >= 2


def _is_one(pods: list[Object]) -> bool:
    return len(pods) == 1


async def _continues_from_snapshot(following: Following) -> None:
    """Wait until the second pod counts on: not from the beginning, and without a gap."""
    await begun(following, 0, counts=len(following.lines(0)) + 30)
    _, lines = following.by_pod(0)
    second = list(map(int, lines))
    assert second[0] > 0
    assert second == list(range(second[0], second[0] + len(second)))


async def _assert_never_twice(namespace: Namespace, following: Following, owner: Object) -> None:
    """The node is back: the pod that it has lost is not, and the one that continues still does."""
    await asyncio.wait_for(following.said(0, len(following.lines(0)) + 10), patient(60))
    (pod,) = await wait_for_all(  # the kubelet that is back reports the end of the lost one
        namespace.api, "v1", "Pod", _is_one, namespace=namespace.name, selector=f"{LABEL}={NAME}"
    )
    assert pod["metadata"]["name"] == following.pods[0][-1]
    assert len(following.pods[0]) == 2
    if owner["kind"] == "Job":
        assert (await namespace.get("batch/v1", "Job", NAME))["status"].get("failed", 0) == 0


@pytest.mark.parametrize("owner", OWNERS)
async def test_work_goes_on_elsewhere_once_the_node_is_out_of_service(
    owner: str, protected: Namespace, toolbox: str, api: Api
) -> None:
    body = OWNERS[owner](toolbox)
    async with _saved_while_it_runs(protected, body) as following:
        node = following.nodes[0][0]
        async with switched_off(protected, node), out_of_service(protected, node):
            await _continues_from_snapshot(following)
        assert following.nodes[0][1] != node
        await _assert_never_twice(protected, following, body)
    await parts.whole(api)


async def test_policy_that_keeps_pods_running_keeps_none_on_a_node_that_is_out_of_service(
    protected: Namespace, toolbox: str, api: Api
) -> None:
    body = deployment(toolbox)
    async with _saved_while_it_runs(protected, body, onCheckpointFailure="KeepRunning") as following:
        node = following.nodes[0][0]
        async with switched_off(protected, node), out_of_service(protected, node):
            await _continues_from_snapshot(following)
        await _assert_never_twice(protected, following, body)
    await parts.whole(api)
