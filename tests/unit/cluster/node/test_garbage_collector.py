"""A node collects a namespace when it is its turn, once, and with credentials that it gets for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest

from cedana_sched.cluster.collection_turns import KEY, CollectionTurn, encode_turns
from cedana_sched.cluster.node.garbage_collector import GarbageCollector
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.store.collection_turns import TurnResult
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.garbage import GarbageReport
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.testing import FakeApi

NODE, NAME, OURS = "node-1", "cedana-sched-collections", "ours"
LATER = 600.0


class Site:
    """An API server with the ConfigMap, and a store that counts what is collected."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.collected: asyncio.Queue[str] = asyncio.Queue()
        self.opened = 0
        self.problem: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self.tell()

    def tell(self, *turns: CollectionTurn) -> None:
        self.api.put(CONFIG_MAPS, {"metadata": {"name": NAME, "namespace": OURS}, "data": {KEY: encode_turns(turns)}})

    def open(self) -> SnapshotStore:
        self.opened += 1
        return cast("SnapshotStore", self)

    def collect_in_turn(self, namespace: str, every_seconds: float) -> TurnResult:
        self._loop.call_soon_threadsafe(self.collected.put_nowait, namespace)
        if self.problem is not None:
            raise self.problem
        return TurnResult(GarbageReport(namespace), None)

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        collector = GarbageCollector(self.api, NODE, NAME, OURS, self.open)
        running = asyncio.create_task(collector.run())
        try:
            async with asyncio.timeout(60):
                await collector._informer.synced.wait()
                yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def turn(namespace: str, node: str = NODE, seconds: float = LATER) -> CollectionTurn:
    return CollectionTurn(node, namespace, SERVER_TIME.seconds() + seconds)


async def test_it_collects_in_its_own_turns_and_in_each_once() -> None:
    site = Site()
    first, second = turn("research"), turn("bio")
    async with site.agent():
        site.tell(first, turn("finance", node="node-2"))
        assert await site.collected.get() == "research"
        site.tell(first, second)
        assert await site.collected.get() == "bio"
        site.tell(turn("research", seconds=2 * LATER))
        assert await site.collected.get() == "research"
        assert site.collected.empty()
    assert site.opened == 3, "no credentials of one turn are used in another"


async def test_a_turn_that_stands_when_it_begins_is_its_own() -> None:
    site = Site()
    site.tell(turn("research"), turn("old", seconds=-1))
    async with site.agent():
        assert await site.collected.get() == "research"
        assert site.collected.empty()


@pytest.mark.parametrize("problem", [CredentialsRefusedError("not your turn"), RuntimeError("a defect"), None])
async def test_a_collection_that_fails_costs_no_other_turn(problem: Exception | None) -> None:
    site = Site()
    site.problem = problem
    async with site.agent():
        site.tell(turn("research"))
        assert await site.collected.get() == "research"
        site.problem = None
        site.tell(turn("bio"))
        assert await site.collected.get() == "bio"
