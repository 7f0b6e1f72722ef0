"""An agent that is told to end finishes what nobody else could finish in its place."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.component.draining import run_until_drained
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.order_exchange import NamedPod, OrderedObject, OrderedSpec, OrderedStatus
from cedana_sched.model.records import CheckpointStep


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Feed:
    def __init__(self) -> None:
        nothing = cast("Any", None)
        self.feed = OrderFeed(nothing, "n1", nothing)
        self._version = 0

    def shows(self, step: CheckpointStep) -> None:
        self._version += 1
        metadata = Metadata(name="c1", namespace="bio", resource_version=str(self._version))
        self.feed.checkpoints._put(OrderedObject(metadata, OrderedSpec("c1", NamedPod("u1")), OrderedStatus(step=step)))


async def test_a_checkpoint_that_has_begun_is_finished_first() -> None:
    feed, stopping = Feed(), asyncio.Event()
    feed.shows(CheckpointStep.FREEZING)
    ending = asyncio.create_task(run_until_drained(stopping, asyncio.sleep(3600), [feed.feed]))
    stopping.set()
    for step in (CheckpointStep.FROZEN, CheckpointStep.DUMPING, CheckpointStep.COMMITTED, CheckpointStep.KILLING):
        await turns()
        assert not ending.done(), step
        feed.shows(step)
    await turns()
    assert not ending.done()
    feed.shows(CheckpointStep.READY)
    await asyncio.wait_for(ending, 60)


async def test_one_that_nobody_has_begun_is_the_next_agents() -> None:
    feed, stopping = Feed(), asyncio.Event()
    feed.shows(CheckpointStep.WAITING)
    stopping.set()
    await asyncio.wait_for(run_until_drained(stopping, asyncio.sleep(3600), [feed.feed]), 60)


async def test_an_agent_that_fails_fails_at_once() -> None:
    async def fails() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await run_until_drained(asyncio.Event(), fails(), [])
