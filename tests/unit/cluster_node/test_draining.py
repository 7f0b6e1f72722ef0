"""An agent that is told to end finishes what nobody else could finish in its place."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest

from cedana_sched.cluster.node.draining import until_drained
from cedana_sched.cluster.node.orders import OrderFeed, OrderObject, _Pod, _Spec, _Status
from cedana_sched.cluster.node.prestop import PreStopServer
from cedana_sched.kube.objects import Metadata
from cedana_sched.model.records import CheckpointStep
from tests.unit.cluster_node.test_prestop_calls import POD_TOKEN, Held


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
        self.feed.checkpoints._put(OrderObject(metadata, _Spec("c1", _Pod("u1")), _Status(step=step)))


async def test_a_checkpoint_that_has_begun_is_finished_first() -> None:
    feed, told = Feed(), asyncio.Event()
    feed.shows(CheckpointStep.FREEZING)
    ending = asyncio.create_task(until_drained(told, asyncio.sleep(3600), [feed.feed]))
    told.set()
    for step in (CheckpointStep.FROZEN, CheckpointStep.DUMPING, CheckpointStep.COMMITTED, CheckpointStep.KILLING):
        await turns()
        assert not ending.done(), step
        feed.shows(step)
    await turns()
    assert not ending.done()
    feed.shows(CheckpointStep.READY)
    await asyncio.wait_for(ending, 5)


async def test_one_that_nobody_has_begun_is_the_next_agents() -> None:
    feed, told = Feed(), asyncio.Event()
    feed.shows(CheckpointStep.WAITING)
    told.set()
    await asyncio.wait_for(until_drained(told, asyncio.sleep(3600), [feed.feed]), 5)


async def test_a_hold_is_answered_first() -> None:
    held, told = Held(), asyncio.Event()
    server = PreStopServer(held.find, held.deleted, held.released)
    serving: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with server.serve(0) as port:
            serving.set_result(port)
            await asyncio.Event().wait()

    ending = asyncio.create_task(until_drained(told, serve(), [server]))
    url = f"http://127.0.0.1:{await serving}/v1/hold/{POD_TOKEN}"
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(url))
        await held.asked.wait()
        told.set()
        await turns()
        assert not ending.done()
        held.release.set()
        async with await asking as answer:
            assert (answer.status, await answer.text()) == (200, "let go\n")
    await asyncio.wait_for(ending, 5)


async def test_an_agent_that_fails_fails_at_once() -> None:
    async def fails() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await until_drained(asyncio.Event(), fails(), [])
