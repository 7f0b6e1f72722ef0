"""Work in turns: bounded for all, and of one namespace, so that none delays the others'."""

from __future__ import annotations

import asyncio

from cedana_sched.kube.namespace_turns import NamespaceTurns


class _Work:
    """Work that begins in its turn, and lasts until the test ends it."""

    def __init__(self, most: int, most_of_namespace: int) -> None:
        self.turns = NamespaceTurns(most, most_of_namespace)
        self.began: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """Begin work called `NAMESPACE/...`."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
        await self.rest()

    async def _run(self, name: str) -> None:
        async with self.turns.turn(name.partition("/")[0]):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await self.rest()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        ends = await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)
        assert [type(one) for one in ends] == [asyncio.CancelledError] * len(names)
        await self.rest()

    async def rest(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_one_namespace_leaves_room_for_others() -> None:
    work = _Work(3, 2)
    await work.begin("a/1", "a/2", "a/3", "a/4")
    assert work.began == ["a/1", "a/2"]
    await work.begin("b/1")
    assert work.began == ["a/1", "a/2", "b/1"]
    await work.cancel("a/1", "a/2", "a/3", "a/4", "b/1")


async def test_namespaces_that_wait_are_served_in_turn() -> None:
    work = _Work(2, 2)
    await work.begin("a/1", "a/2", "a/3", "a/4", "b/1", "c/1")
    for name in ("a/1", "a/2", "a/3"):
        await work.end(name)
    assert work.began[2:] == ["a/3", "b/1", "c/1"]
    await work.cancel("a/4", "b/1", "c/1")


async def test_cancelled_work_takes_no_turn() -> None:
    work = _Work(1, 1)
    await work.begin("a/1", "a/2", "b/1")
    await work.cancel("a/2")
    await work.end("a/1")
    assert work.began == ["a/1", "b/1"]
    await work.cancel("b/1")


async def test_work_that_is_cancelled_as_its_turn_comes_leaves_it_to_the_next() -> None:
    turns = NamespaceTurns(1, 1)
    first = asyncio.create_task(_enter(turns))
    await asyncio.sleep(0)
    second = asyncio.create_task(_enter(turns))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second.cancel()  # its turn is granted, and it has not run since
    await asyncio.gather(second, return_exceptions=True)
    async with asyncio.timeout(60), turns.turn("b"):
        pass


async def _enter(turns: NamespaceTurns) -> None:
    async with turns.turn("a"):
        await asyncio.Event().wait()
