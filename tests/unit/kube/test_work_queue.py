"""The queue behind the writes: nothing is lost, nothing is done twice at a time, and failures come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.work_queue import MOST_OF_GROUP, WORKERS, WorkQueue


@asynccontextmanager
async def _running(
    perform: Callable[[str], Awaitable[None]], group_of: Callable[[str], str] | None = None
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue("test", perform, group_of=group_of)
    task = asyncio.create_task(queue.run())
    try:
        async with asyncio.timeout(60):
            yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_that_changes_while_it_is_worked_on_is_worked_on_again() -> None:
    began: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Semaphore(0)
    at_once = 0

    async def perform(key: str) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "one worker at a time"
        began.put_nowait(key)
        await go_on.acquire()
        at_once -= 1

    async with _running(perform) as queue:
        queue.add("a")
        queue.add("a")
        assert await began.get() == "a"
        queue.add("a")
        queue.add("a")
        go_on.release()
        assert await began.get() == "a"
        go_on.release()
        queue.add("b")
        assert await began.get() == "b", "and not a third time"
        go_on.release()


async def test_what_failed_comes_again() -> None:
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def perform(_key: str) -> None:
        attempts.put_nowait(attempts.qsize())
        if attempts.qsize() < 3:
            raise ApiUnavailableError("not now")
        done.set()

    done = asyncio.Event()
    async with _running(perform) as queue:
        queue.add("a")
        await done.wait()
    assert attempts.qsize() == 3


async def test_a_defect_is_logged_and_costs_no_other_key() -> None:
    done = asyncio.Event()

    async def perform(key: str) -> None:
        if key == "a":
            raise LookupError("a defect")
        done.set()

    with structlog.testing.capture_logs() as logs:
        async with _running(perform) as queue:
            queue.add("a")
            queue.add("b")
            await done.wait()
    assert [one["key"] for one in logs if one["log_level"] == "error"] == ["a"]


async def test_many_keys_of_one_group_delay_no_other_groups() -> None:
    order: list[str] = []
    done = asyncio.Event()

    async def perform(key: str) -> None:
        order.append(key)
        await asyncio.sleep(0)
        if len(order) == 102:
            done.set()

    async with _running(perform, group_of=lambda key: key.partition("/")[0]) as queue:
        for number in range(100):
            queue.add(f"many/{number}")
        queue.add("few/0")
        queue.add("few/1")
        await done.wait()
    assert [key for key in order if key.startswith("many/")] == [f"many/{number}" for number in range(100)]
    assert {"few/0", "few/1"} < set(order[:4])


async def test_slow_keys_of_one_group_leave_workers_to_others() -> None:
    """A tenant may make each of their keys last, as by objects that take long to be read."""
    began: asyncio.Queue[str] = asyncio.Queue()
    end = asyncio.Event()

    async def perform(key: str) -> None:
        began.put_nowait(key)
        if key.startswith("slow/"):
            await end.wait()

    async with _running(perform, group_of=lambda key: key.partition("/")[0]) as queue:
        for number in range(2 * WORKERS):
            queue.add(f"slow/{number}")
        assert [await began.get() for _ in range(MOST_OF_GROUP)] == [
            f"slow/{number}" for number in range(MOST_OF_GROUP)
        ]
        queue.add("few/0")
        assert await began.get() == "few/0"
        end.set()
        assert len([await began.get() for _ in range(2 * WORKERS - MOST_OF_GROUP)]) == 2 * WORKERS - MOST_OF_GROUP


async def test_keys_of_one_group_alone_have_all_workers() -> None:
    began: list[str] = []

    async def perform(key: str) -> None:
        began.append(key)
        await asyncio.Event().wait()

    async with _running(perform) as queue:
        for number in range(2 * WORKERS):
            queue.add(str(number))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(began) == WORKERS
