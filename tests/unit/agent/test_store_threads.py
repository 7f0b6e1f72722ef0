"""Calls to a store, beside the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from cedana_sched.agent.store_threads import CALLS_AT_ONCE, StoreThreads

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
