"""A pod whose label somebody has removed is still there: only the API server says that it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.node import gone_pod_confirmation
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.errors import AbsentError, ApiError, ApiUnavailableError, NotServedError
from cedana_sched.kube.resources import PODS, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from tests.pauses import shorten_pauses

REF = WorkloadRef("u0", "bio", "md-0", "n1")
HELD = Pod(
    Metadata("md-0", "bio", "u0", "1", annotations={names.PRESTOP_TOKEN: "token"}),
    PodSpec(node_name="n1"),
    PodStatus("Running"),
)
DELETED = replace(
    HELD, metadata=replace(HELD.metadata, resource_version="2", deletion_timestamp="2026-05-01T12:00:00Z")
)


class Server:
    """Has one pod by the name, or none, or does not answer."""

    def __init__(self) -> None:
        self.pod: Pod | None = HELD
        self.problem: ApiError | None = None
        self.asked = asyncio.Event()

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Pod]) -> Pod:
        assert (resource, name, namespace, into) == (PODS, "md-0", "bio", Pod)
        self.asked.set()
        if self.problem is not None:
            raise self.problem
        if self.pod is None:
            raise AbsentError("none")
        return self.pod


class Node:
    def __init__(self) -> None:
        self.server = Server()
        nothing = cast("Any", None)
        self.pods = NodePods(cast("Any", self.server), "n1", OrderFeed(nothing, "n1", nothing))
        self.pods.informer.synced.set()
        self.told: list[tuple[Pod | None, Pod | None]] = []
        self._changed = asyncio.Event()
        self.pods.subscribe(self._heard)

    def _heard(self, before: Pod | None, now: Pod | None) -> None:
        self.told.append((before, now))
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def lose_label(self) -> None:
        """Returns once the API server has been asked, and what it said is known."""
        self.pods.informer._put(HELD)
        self.told.clear()
        self.pods.informer._drop(HELD)
        await asyncio.wait_for(self.server.asked.wait(), 60)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(gone_pod_confirmation, "LOOK_AGAIN_SECONDS", 0.01)
    shorten_pauses(monkeypatch)
    node = Node()
    looking = asyncio.create_task(node.pods.present.run())
    yield node
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def test_a_label_that_is_removed_for_a_moment_ends_nothing(node: Node) -> None:
    waiting = [asyncio.create_task(one(REF.uid)) for one in (node.pods.wait_ended, node.pods.wait_ended_or_backing_off)]
    await node.lose_label()
    assert node.pods.uids() == ["u0"]
    assert node.pods.pod("u0") == HELD
    assert node.pods.pod_of_prestop_token("token") == HELD
    labelled = replace(HELD, metadata=replace(HELD.metadata, resource_version="3"))
    node.pods.informer._put(labelled)
    assert node.pods.uids() == ["u0"]
    assert node.pods.pod("u0") == labelled
    assert node.told[-1] == (HELD, labelled)
    assert all(now is not None for _, now in node.told)
    ended, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not ended
    for one in waiting:
        one.cancel()


def test_a_token_that_two_pods_of_an_earlier_version_have_is_taken_for_the_one_with_the_container(node: Node) -> None:
    def with_container(number: int, container: str) -> Pod:
        metadata = replace(HELD.metadata, name=f"md-{number}", uid=f"u{number}")
        return replace(HELD, metadata=metadata, spec=replace(HELD.spec, containers=(Container(container),)))

    pods = [with_container(1, "main"), with_container(2, "side")]
    for pod in pods:
        node.pods.informer._put(pod)
    assert [node.pods.pod_of_prestop_token("token", name) for name in ("main", "side", "other")] == [*pods, None]
    assert node.pods.pod_of_prestop_token("token") in pods, "older pods name no container"


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(None, id="it is no more"),
        pytest.param(replace(HELD, metadata=replace(HELD.metadata, uid="u1")), id="another one has its name"),
        pytest.param(replace(HELD, status=PodStatus("Succeeded")), id="it has finished"),
    ],
)
async def test_a_pod_ends_when_the_api_server_says_so(node: Node, now: Pod | None) -> None:
    await node.lose_label()
    waiting = asyncio.create_task(node.pods.wait_ended(REF.uid))
    node.server.pod = now
    await asyncio.wait_for(waiting, 60)
    assert node.pods.uids() == []
    assert node.pods.pod("u0") is None
    assert node.told[-1][1] is None
    assert len([one for _, one in node.told if one is None]) == 1


async def test_a_pod_that_nobody_can_ask_for_is_there(node: Node) -> None:
    node.server.problem = ApiUnavailableError("no answer")
    await node.lose_label()
    assert node.pods.uids() == ["u0"]
    node.server.pod, node.server.problem = None, None
    await node.until(lambda: not node.pods.uids())


async def test_the_deletion_of_a_pod_without_label_is_seen(node: Node) -> None:
    await node.lose_label()
    node.server.pod = DELETED
    await node.until(lambda: any(now == DELETED for _, now in node.told))
    assert node.pods.pod("u0") == DELETED


async def test_a_pod_that_was_without_label_when_the_agent_began_is_known_once_it_was_asked_for(node: Node) -> None:
    """Its orders come all the same; whoever does not know it takes it for ended."""
    assert await node.pods.is_on_node(REF) is True
    assert node.told == [(None, HELD)]
    assert node.pods.uids() == ["u0"]
    assert await node.pods.is_on_node(REF) is True
    assert node.told == [(None, HELD)]
    node.server.pod = None
    await node.until(lambda: not node.pods.uids())
    assert await node.pods.is_on_node(REF) is None
    assert node.pods.uids() == []


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(replace(HELD, spec=PodSpec(node_name="n2")), id="it is on another node"),
        pytest.param(replace(HELD, status=PodStatus("Failed")), id="it has finished"),
        pytest.param(replace(HELD, metadata=replace(HELD.metadata, uid="u1")), id="it is another one"),
    ],
)
async def test_others_are_not_known_because_somebody_asks_for_them(node: Node, pod: Pod) -> None:
    node.server.pod = pod
    await node.pods.is_on_node(REF)
    assert node.told == []
    assert node.pods.uids() == []


async def test_an_api_server_that_serves_no_pods_says_nothing_of_one(node: Node) -> None:
    node.server.problem = NotServedError("not served")
    await node.lose_label()
    assert node.pods.uids() == ["u0"]


async def test_whoever_fails_to_hear_of_a_pod_costs_no_other(node: Node) -> None:
    def fails(before: Pod | None, now: Pod | None) -> None:
        raise RuntimeError(f"{before} {now}")

    node.pods.present._sinks.insert(0, fails)
    await node.lose_label()
    node.server.pod = None
    await node.until(lambda: not node.pods.uids())
    assert node.told[-1] == (HELD, None)
