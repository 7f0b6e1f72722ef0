"""A deletion that may be a preemption waits until somebody says which it is."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cedana_sched.cluster.node import node_pods as module
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.builtin_kinds import PREEMPTION, Condition, Metadata, PartialObject, Pod, PodStatus, read_time
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.own_kinds.order_exchange import NamedPod, OrderedObject, OrderedSpec, OrderedStatus
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched.model.records import CheckpointStep

UID = "pod-uid"
DEADLINE = "2026-05-01T12:00:00.000000Z"
"""Of a checkpoint's eviction."""


class Shutdown:
    mark: str | None = None

    def is_in_progress(self) -> bool:
        return self.mark is not None

    def left_out_mark(self) -> str | None:
        return self.mark


class Node:
    def __init__(self, api: Any = None) -> None:
        nothing = cast("Any", None)
        self.feed = OrderFeed(nothing, "n1", nothing)
        self.feed.checkpoints.synced.set()
        self.feed.restores.synced.set()
        self.now = read_time(DEADLINE) or 0.0
        self.shutdown = Shutdown()
        self.pods = NodePods(api, "n1", self.feed, shutdown=self.shutdown, now=lambda: self.now)
        self._version = 0

    def put(
        self,
        asks: str | None,
        *,
        evicted: bool = False,
        phase: str = "Running",
        not_preempted: str = "",
        deleted: bool = True,
    ) -> None:
        self._version += 1
        given = {names.CONFIRM_DELETION: asks, names.NOT_PREEMPTED: not_preempted}
        annotations = {key: value for key, value in given.items() if value}
        conditions = (Condition("DisruptionTarget", "True", PREEMPTION),) if evicted else ()
        metadata = Metadata(
            name="md-0",
            namespace="bio",
            uid=UID,
            resource_version=str(self._version),
            annotations=annotations,
            deletion_timestamp="2026-05-01T12:00:00Z" if deleted else None,
        )
        self.pods.informer._put(Pod(metadata, status=PodStatus(phase, conditions=conditions)))

    def order(self, step: CheckpointStep, **status: Any) -> None:
        self._version += 1
        metadata = Metadata(name="c1", namespace="bio", resource_version=str(self._version))
        shown = OrderedStatus(step=step, deadline=DEADLINE, **status)
        self.feed.checkpoints._put(OrderedObject(metadata, OrderedSpec("c1", NamedPod(UID)), shown))

    async def is_released(self) -> bool:
        """Within no time."""
        released = asyncio.create_task(self.pods.wait_released(UID))
        for _ in range(20):
            await asyncio.sleep(0)
        done = released.done()
        released.cancel()
        return done


@pytest.mark.parametrize(
    ("asks", "evicted"), [(None, True), (names.CONFIRM_IF_EVICTED, False)], ids=["never asks", "is not evicted"]
)
async def test_who_does_not_ask_goes_at_once(asks: str | None, evicted: bool) -> None:
    node = Node()
    node.put(asks, evicted=evicted)
    assert await node.is_released()


@pytest.mark.parametrize(("asks", "evicted"), [(names.CONFIRM_ALWAYS, False), (names.CONFIRM_IF_EVICTED, True)])
async def test_who_asks_waits_for_its_checkpoint_and_then_for_its_end(asks: str, evicted: bool) -> None:
    node = Node()
    node.put(asks, evicted=evicted)
    released = asyncio.create_task(node.pods.wait_released(UID))
    for step in (None, CheckpointStep.FREEZING, CheckpointStep.DUMPING):
        if step is not None:
            node.order(step)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not released.done(), step
    node.order(CheckpointStep.READY)
    await asyncio.wait_for(released, 60)


@pytest.mark.parametrize(
    ("step", "status", "seconds", "goes"),
    [
        pytest.param(CheckpointStep.READY, {"kill_pending": True}, 3600.0, True, id="it is saved, and frozen"),
        pytest.param(CheckpointStep.FAILED, {"verdict": "Evict"}, 59.0, True, id="its scheduler was told to go on"),
        pytest.param(CheckpointStep.FAILED, {"verdict": "KeepRunning"}, 0.0, True, id="it cannot be kept"),
        pytest.param(CheckpointStep.FAILED, {"verdict": "Evict"}, 61.0, False, id="it was let go, and stayed"),
        pytest.param(CheckpointStep.FAILED, {"verdict": "NotNeeded"}, 0.0, False, id="the preemption was called off"),
        pytest.param(CheckpointStep.READY, {"verdict": "NotNeeded"}, 0.0, False, id="it was spared"),
    ],
)
async def test_a_checkpoint_that_is_over_tells_only_of_the_eviction_that_it_was_for(
    step: CheckpointStep, status: dict[str, Any], seconds: float, goes: bool
) -> None:
    """Objects show it for an hour more. A pod that went by it would lose all that it has done since."""
    node = Node()
    node.now += seconds
    node.put(names.CONFIRM_ALWAYS)
    node.order(step, **status)
    assert await node.is_released() is goes


@pytest.mark.parametrize("verdict", ["Evict", "KeepRunning"])
@pytest.mark.parametrize(("seconds", "goes"), [(89.0, True), (91.0, False)])
async def test_failed_checkpoint_explains_deletions_for_a_while_and_not_until_its_deadline(
    verdict: str, seconds: float, goes: bool
) -> None:
    """The deadline may be a day away. Until then the pod runs on, and is saved again when it is deleted."""
    node = Node()
    failed_at = node.now - 600
    node.put(names.CONFIRM_ALWAYS)
    completion_time = utc_datetime_of(failed_at).isoformat()
    node.order(CheckpointStep.FAILED, verdict=verdict, completion_time=completion_time)
    node.now = failed_at + seconds
    assert await node.is_released() is goes


class Written:
    """The API server, which may be ahead of our watch."""

    def __init__(self, deleted: bool, *, answers: bool = True) -> None:
        self._deleted = deleted
        self._answers = answers

    async def get(self, resource: Any, name: str, namespace: str, *, into: type[PartialObject]) -> PartialObject:
        del resource
        if not self._answers:
            raise ApiUnavailableError("no answer")
        at = "2026-05-01T12:00:00Z" if self._deleted else None
        return into(Metadata(name=name, namespace=namespace, uid=UID, deletion_timestamp=at))


@pytest.mark.parametrize(
    ("api", "waits"),
    [
        pytest.param(Written(deleted=False), False, id="a probe ends its container"),
        pytest.param(Written(deleted=True), True, id="its deletion is not heard of yet"),
        pytest.param(Written(deleted=False, answers=False), True, id="nobody knows"),
    ],
)
async def test_only_who_is_deleted_waits_for_a_word(api: Written, waits: bool) -> None:
    node = Node(cast("Any", api))
    node.put(names.CONFIRM_ALWAYS, deleted=False)
    assert await node.is_released() is not waits


@pytest.mark.parametrize("asks", [names.CONFIRM_ALWAYS, names.CONFIRM_IF_EVICTED, None])
async def test_every_pod_of_a_node_that_shuts_down_waits_for_its_checkpoint(asks: str | None) -> None:
    """The kubelet ends it, and nobody deletes it."""
    node = Node(cast("Any", Written(deleted=False)))
    node.put(asks, deleted=False)
    assert await node.is_released(), "a probe ends its container"
    node.shutdown.mark = "left-out-2"
    assert not await node.is_released()
    node.order(CheckpointStep.DUMPING)
    assert not await node.is_released()
    node.order(CheckpointStep.READY, kill_pending=True)
    assert await node.is_released()


async def test_pod_that_is_left_out_of_a_shutdown_ends_at_once() -> None:
    node = Node(cast("Any", Written(deleted=False)))
    node.shutdown.mark = "left-out-2"
    node.put(None, deleted=False)
    assert not await node.is_released()
    node.put(None, deleted=False, not_preempted="left-out-1")
    assert not await node.is_released(), "that was another shutdown"
    node.put(None, deleted=False, not_preempted="left-out-2")
    assert await node.is_released()


async def test_pod_that_has_outlived_the_shutdown_that_left_it_out_waits_when_it_is_deleted() -> None:
    node = Node()
    node.put(names.CONFIRM_ALWAYS, not_preempted="left-out-1")
    assert not await node.is_released()


async def test_who_asks_is_let_go_by_a_word() -> None:
    node = Node()
    node.put(names.CONFIRM_ALWAYS)
    assert not await node.is_released()
    node.put(names.CONFIRM_ALWAYS, not_preempted=names.NOT_BY_SCHEDULER)
    assert not await node.is_released(), "another adapter decides"
    node.put(names.CONFIRM_ALWAYS, not_preempted="true")
    assert await node.is_released()


async def test_who_asks_and_has_finished_waits_for_nobody() -> None:
    node = Node()
    node.put(names.CONFIRM_ALWAYS, phase="Succeeded")
    assert await node.is_released()


async def test_who_hears_nothing_goes_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRMATION_SECONDS", 0.05)
    node = Node()
    node.put(names.CONFIRM_ALWAYS)
    await asyncio.wait_for(node.pods.wait_released(UID), 60)


@pytest.mark.parametrize("deleted", [True, False])
async def test_deleted_pod_waits_once_for_an_answer(monkeypatch: pytest.MonkeyPatch, *, deleted: bool) -> None:
    """Its containers call one after another, and its own grace ends it after one more look."""
    monkeypatch.setattr(module, "CONFIRMATION_SECONDS", 0.05)
    node = Node(cast("Any", Written(deleted=True)))
    node.put(names.CONFIRM_ALWAYS, deleted=deleted)
    await asyncio.wait_for(node.pods.wait_released(UID), 60)
    monkeypatch.setattr(module, "CONFIRMATION_SECONDS", 60)
    assert await node.is_released() is deleted
    node.order(CheckpointStep.DUMPING)
    assert not await node.is_released(), "it may begin late"


@pytest.mark.parametrize("ends_by", ["a word", "the time"])
async def test_nobody_waits_any_more_when_it_is_decided(monkeypatch: pytest.MonkeyPatch, ends_by: str) -> None:
    monkeypatch.setattr(module, "CONFIRMATION_SECONDS", 5 if ends_by == "a word" else 0.01)
    node = Node()
    node.put(names.CONFIRM_ALWAYS)
    before = asyncio.all_tasks()
    if ends_by == "a word":
        asyncio.get_running_loop().call_later(0.01, lambda: node.put(names.CONFIRM_ALWAYS, not_preempted="true"))
    await node.pods.wait_released(UID)
    assert asyncio.all_tasks() == before
