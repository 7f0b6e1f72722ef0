"""Calls to a store, beside the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from cedana_sched.agent.store_threads import BACKGROUND_AT_ONCE, CALLS_AT_ONCE, STAGING_AT_ONCE, StoreThreads

ENDS = """
import asyncio, threading
from cedana_sched.agent.store_threads import StoreThreads

async def main():
    waiting = asyncio.create_task(StoreThreads().run(threading.Event().wait))
    await asyncio.sleep(0.01)
    waiting.cancel()

asyncio.run(main())
"""


async def test_the_caller_gets_the_result_or_the_error() -> None:
    threads = StoreThreads()
    assert await threads.run(int, "7", base=8) == 7
    with pytest.raises(ValueError, match="nine"):
        await threads.run(int, "nine")


async def test_only_so_many_calls_run_at_once() -> None:
    threads, go, running = StoreThreads(), threading.Event(), []

    def call(number: int) -> None:
        running.append(number)
        go.wait()

    calls = [asyncio.create_task(threads.run(call, number)) for number in range(CALLS_AT_ONCE + 3)]
    await threads_begin(running)
    assert len(running) == CALLS_AT_ONCE
    go.set()
    await asyncio.gather(*calls)
    assert len(running) == CALLS_AT_ONCE + 3


async def threads_begin(running: list[int]) -> None:
    for _ in range(100):
        await asyncio.sleep(0.002)  # whoever would begin has had the time
    assert running


def test_a_call_that_never_returns_does_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", ENDS], timeout=20, check=False).returncode == 0


class Held:
    """Calls that stay in the store until they are let go; each says that it has begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._go = threading.Event()
        self._lock = threading.Lock()
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.at_once = self.most = 0

    def __call__(self, name: str) -> None:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self._loop.call_soon_threadsafe(self.begun.put_nowait, name)
        self._go.wait()
        with self._lock:
            self.at_once -= 1

    __name__ = "held"

    def let_go(self) -> None:
        self._go.set()


async def test_a_find_does_not_wait_for_collections_or_stages() -> None:
    threads, held = StoreThreads(), Held(asyncio.get_running_loop())
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(threads.background.run(held, f"collect {number}"))
            group.create_task(threads.staging.run(held, f"stage {number}"))
        began = [await held.begun.get() for _ in range(BACKGROUND_AT_ONCE + STAGING_AT_ONCE)]
        assert sum(name.startswith("collect") for name in began) == BACKGROUND_AT_ONCE

        assert await threads.run(str, "found") == "found"

        held.let_go()
    assert held.most == BACKGROUND_AT_ONCE + STAGING_AT_ONCE


async def test_a_free_thread_goes_to_the_most_urgent_call() -> None:
    loop = asyncio.get_running_loop()
    threads, held, order = StoreThreads(calls_at_once=1), Held(loop), asyncio.Queue[str]()

    def next_one(name: str) -> None:
        loop.call_soon_threadsafe(order.put_nowait, name)

    async with asyncio.TaskGroup() as group:
        group.create_task(threads.run(held, "the only thread"))
        await held.begun.get()
        for run, name in ((threads.background.run, "collect"), (threads.staging.run, "stage"), (threads.run, "find")):
            group.create_task(run(next_one, name))
        await asyncio.sleep(0)  # all three are in their queues
        held.let_go()
    assert [await order.get() for _ in range(3)] == ["find", "stage", "collect"]


async def test_a_caller_that_leaves_does_not_free_the_thread_that_its_call_holds() -> None:
    threads, held = StoreThreads(), Held(asyncio.get_running_loop())
    first = [asyncio.create_task(threads.run(held, str(number))) for number in range(CALLS_AT_ONCE)]
    for _ in first:
        await held.begun.get()
    for task in first:
        task.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    later = [asyncio.create_task(threads.run(held, f"later {number}")) for number in range(CALLS_AT_ONCE)]
    await asyncio.sleep(0)
    held.let_go()
    await asyncio.gather(*later)

    assert held.most <= CALLS_AT_ONCE


async def test_a_caller_that_leaves_the_queue_keeps_nobody_waiting() -> None:
    threads, held = StoreThreads(), Held(asyncio.get_running_loop())
    busy = [asyncio.create_task(threads.background.run(held, str(number))) for number in range(BACKGROUND_AT_ONCE)]
    for _ in busy:
        await held.begun.get()
    leaves = asyncio.create_task(threads.background.run(held, "leaves"))
    stays = asyncio.create_task(threads.background.run(held, "stays"))
    await asyncio.sleep(0)
    leaves.cancel()
    held.let_go()

    await asyncio.gather(*busy, stays)
    assert await held.begun.get() == "stays"
