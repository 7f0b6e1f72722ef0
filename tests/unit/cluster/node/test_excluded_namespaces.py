"""In a namespace that is not served an agent begins nothing, and ends what has begun."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.grace_period_enforcer import OriginalGraceEnforcer
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.component.configuration import NEVER_TOUCHED
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.own_kinds.order_exchange import NamedPod, OrderedObject, OrderedSpec, OrderedStatus
from cedana_sched.kube.resources import RESTORES, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Dump, FindSnapshot, Freeze, Order, Stage
from cedana_sched.model.records import CheckpointStep
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from tests.unit.cluster.node.order_objects import NODE, ORDERS, AnsweredApi, body_with, performed, read

BEGIN = (Freeze, Dump, FindSnapshot, Stage)
UID = "pod-uid"


async def _answers(kind: Resource, order: Order, served: ServedNamespaces) -> list[Any]:
    body, api = body_with(kind, order), AnsweredApi()
    feed = OrderFeed(api, NODE, performed, served=served)
    async with asyncio.TaskGroup() as group:
        feed._group = group
        feed._on_object_change(kind, None, read(body))
    return api.answers


@pytest.mark.parametrize(("kind", "order"), ORDERS)
async def test_orders_that_begin_something_are_refused_there_and_others_are_not(kind: Resource, order: Order) -> None:
    namespace = body_with(kind, order)["metadata"]["namespace"]
    [answer] = await _answers(kind, order, ServedNamespaces(frozenset({namespace})))
    said = answer.get("why") or answer.get("problem") or ""
    is_refused = isinstance(order, BEGIN)
    assert (f"namespace {namespace} is excluded (excludedNamespaces)" in said) is is_refused
    assert not answer.get("retryable"), "a return of that order goes on at once, as its policy says"
    [elsewhere] = await _answers(kind, order, ServedNamespaces(frozenset({"kube-system"})))
    assert "is excluded" not in str(elsewhere)


def test_among_the_orders_that_are_looked_at_are_all_that_begin_something() -> None:
    assert {type(order) for _, order in ORDERS} > set(BEGIN)
    assert any(kind == RESTORES for kind, _ in ORDERS)


def test_an_agent_reads_which_namespaces_are_excluded() -> None:
    written = {"namespace": "ours", "storage": {"path": "/data"}, "excludedNamespaces": ["monitoring"]}
    read_by_agent = AgentConfiguration.model_validate(written)
    assert read_by_agent.served_namespaces == ServedNamespaces(frozenset({*NEVER_TOUCHED, "ours", "monitoring"}))


class _Node:
    """A pod of `kube-system` that was made ready before that was excluded, or by somebody's own hand."""

    def __init__(self, served: ServedNamespaces) -> None:
        nothing = cast("Any", None)
        self.feed = OrderFeed(nothing, "n1", nothing, served=served)
        self.feed.checkpoints.synced.set()
        self.feed.restores.synced.set()
        self.pods = NodePods(nothing, "n1", self.feed, served)
        annotations = {names.CONFIRM_DELETION: names.CONFIRM_ALWAYS, names.ORIGINAL_GRACE_PERIOD: "0"}
        metadata = Metadata("md-0", "kube-system", UID, "1", annotations=annotations, deletion_timestamp="2026-05-01")
        self.pod = Pod(metadata, PodSpec(), PodStatus("Running"))
        self.pods.informer._put(self.pod)

    def checkpoint(self, step: CheckpointStep) -> None:
        metadata = Metadata("c1", "kube-system", resource_version=step)
        self.feed.checkpoints._put(OrderedObject(metadata, OrderedSpec("c1", NamedPod(UID)), OrderedStatus(step=step)))


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "served", [EVERYWHERE, ServedNamespaces(frozenset({"kube-system"}))], ids=["served", "excluded"]
)
async def test_a_deletion_waits_for_nobodys_word_there(served: ServedNamespaces) -> None:
    released = asyncio.create_task(_Node(served).pods.wait_released(UID))
    await _settled()
    assert released.done() is (served is not EVERYWHERE)
    released.cancel()


async def test_who_is_frozen_when_his_namespace_is_excluded_waits_until_he_is_thawed() -> None:
    node = _Node(ServedNamespaces(frozenset({"kube-system"})))
    node.checkpoint(CheckpointStep.DUMPING)
    released = asyncio.create_task(node.pods.wait_released(UID))
    await _settled()
    assert not released.done()
    node.checkpoint(CheckpointStep.FAILED)
    await asyncio.wait_for(released, 60)


class _Containers:
    def __init__(self) -> None:
        self.killed: list[str] = []

    async def kill(self, pod_uid: str) -> None:
        self.killed.append(pod_uid)

    async def find_container_id(self, pod_uid: str, name: str) -> str | None:
        return f"{pod_uid}-{name}"

    async def kill_container(self, pod_uid: str, identifier: str) -> None:
        self.killed.append(identifier)


@pytest.mark.parametrize(
    "served", [EVERYWHERE, ServedNamespaces(frozenset({"kube-system"}))], ids=["served", "excluded"]
)
async def test_nobody_is_ended_there_because_an_annotation_says_so(served: ServedNamespaces) -> None:
    node, containers = _Node(EVERYWHERE), _Containers()

    async def at_once(_: Any) -> None:
        return None

    async def goes_on(_: Pod) -> bool:
        return False

    pods = NodePods(cast("Any", None), "n1", node.feed, served)
    grace = OriginalGraceEnforcer(at_once, goes_on, containers, pods.is_served)
    living = Pod(
        Metadata("md-1", "kube-system", "other", annotations={names.ORIGINAL_GRACE_PERIOD: "0"}),
        PodSpec(containers=(Container("main"),), termination_grace_period_seconds=630),
    )
    async with asyncio.TaskGroup() as group:
        grace.on_pod_ending(node.pod, group)
        grace.on_container_ending(living, "main", group)
    assert containers.killed == ([UID, "other-main"] if served is EVERYWHERE else [])
