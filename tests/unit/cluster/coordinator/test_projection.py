"""What an object says in the end is what its record says."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.kube.client import Api
from cedana_sched.model.records import HoldStep
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD


class Slow:
    """An API server on which each patch takes as long as it likes; a later one may overtake it."""

    def __init__(self) -> None:
        self.says = ""
        self.under_way: dict[str, asyncio.Event] = {}
        self.began = asyncio.Event()

    async def create(self, resource: object, body: Any, *, into: object) -> None: ...

    async def patch(self, resource: object, name: str, namespace: str, patch: Any, subresource: str = "") -> None:
        step = patch["status"]["step"]
        self.under_way[step] = asyncio.Event()
        self.began.set()
        await self.under_way[step].wait()
        self.says = step


async def test_a_write_is_not_overtaken_by_the_next_one() -> None:
    server = Slow()
    projection = Projection(cast("Api", server), "cedana-system")
    running = asyncio.create_task(projection.run())
    releasing, released = (msgspec.structs.replace(HOLD, step=step) for step in (HoldStep.RELEASING, HoldStep.RELEASED))
    projection.write((releasing,), ())
    await asyncio.wait_for(server.began.wait(), 60)
    projection.write((released,), ())
    for _ in range(10):  # turns in which another worker would begin
        await asyncio.sleep(0)
    assert list(server.under_way) == [HoldStep.RELEASING]

    server.began.clear()
    server.under_way[HoldStep.RELEASING].set()
    await asyncio.wait_for(server.began.wait(), 60)
    assert projection.pending_records().records == (released,)
    server.under_way[HoldStep.RELEASED].set()
    await asyncio.wait_for(projection.wait_flushed(), 60)
    assert server.says == HoldStep.RELEASED
    assert projection.pending_records().records == ()
    running.cancel()
