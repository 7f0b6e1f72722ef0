"""Of the orders for one pod the latest works, alone, and no longer than the pod is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from cedana_sched.cluster.node.restoring.pod_order_serializer import OvertakenError, PodOrderSerializer
from cedana_sched.model.errors import RestoreError


class Pods:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def wait_ended(self, uid: str) -> None:
        assert uid == "u-1"
        await self.ended.wait()


async def test_later_order_begins_once_the_earlier_has_left_off() -> None:
    orders, said = PodOrderSerializer(Pods().wait_ended), list[str]()
    begun = asyncio.Event()

    async def first() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as one that kills its child and waits for its end
            said.append("first has left off")

    async def second() -> None:
        said.append("second")

    async with asyncio.TaskGroup() as group:
        earlier = group.create_task(_outcome(orders.run("u-1", first())))
        await begun.wait()
        await orders.run("u-1", second())
    assert said == ["first has left off", "second"]
    assert isinstance(earlier.result(), OvertakenError)


async def test_work_ends_with_its_pod() -> None:
    pods, was_cancelled = Pods(), asyncio.Event()

    async def work() -> None:
        pods.ended.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    with pytest.raises(RestoreError, match="the pod ended before it was restored"):
        await PodOrderSerializer(pods.wait_ended).run("u-1", work())
    assert was_cancelled.is_set()


async def test_error_of_the_work_is_the_orders() -> None:
    async def work() -> None:
        raise RestoreError("no volume")

    with pytest.raises(RestoreError, match="no volume"):
        await PodOrderSerializer(Pods().wait_ended).run("u-1", work())


async def test_cancelled_order_leaves_nothing_and_the_next_one_works() -> None:
    orders, begun = PodOrderSerializer(Pods().wait_ended), asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def nothing() -> None: ...

    async with asyncio.TaskGroup() as group:
        order = group.create_task(_outcome(orders.run("u-1", work())))
        await begun.wait()
        order.cancel()
    await orders.run("u-1", nothing())
    assert len(asyncio.all_tasks()) == 1


async def _outcome(running: Awaitable[None]) -> RestoreError | None:
    try:
        await running
    except RestoreError as error:
        return error
    return None
