"""Threads for calls that may never return, as to the store, so that they block no freeze, thaw or kill, nor our exit.

The event loop's own threads are few (six on two CPUs), the journal and the freezer use them too, and a process waits
for them before it exits. These are daemon threads: their writes may be interrupted at any instant.

Calls run in lanes, so that a call for which a workload waits never queues behind background calls. A lane takes its
share of the threads at most, and a free thread goes to the most urgent call. A thread counts until its call has
returned, also when the caller was cancelled: the bound holds for the load on the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

CALLS_AT_ONCE = 8
STAGING_AT_ONCE = 4
"""Each fetches a whole snapshot, with several threads of its own."""
BACKGROUND_AT_ONCE = 2

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Lane:
    """Calls of one urgency. Made by `StoreThreads`."""

    def __init__(self, threads: StoreThreads, at_once: int) -> None:
        self._threads = threads
        self.at_once = at_once
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run a call in a thread. Cancellation releases the caller; a call that has begun runs on."""
        await self._threads.wait_for_thread(self)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()

        def work() -> None:
            try:
                result = call(*arguments, **named)
            except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
                hand_over(answer.set_exception, error)
            else:
                hand_over(answer.set_result, result)

        def hand_over(how: Callable[[T], None], what: T) -> None:
            def deliver() -> None:
                self._threads.free_thread(self)
                if not answer.done():
                    how(what)

            with contextlib.suppress(RuntimeError):  # the loop is closed: the result is not needed any more
                loop.call_soon_threadsafe(deliver)

        try:
            threading.Thread(target=work, name=f"{self._threads.name} {call.__name__}", daemon=True).start()
        except RuntimeError:  # the process has no thread left
            self._threads.free_thread(self)
            raise
        return await answer


class StoreThreads:
    """Runs at most `calls_at_once` calls; others wait, by lane. `run` is that of the most urgent lane.

    Attributes:
        name: prefix of its threads' names, before the name of the call.
        staging: fetches of whole snapshots.
        background: retention, collection, verification, prefetching: nothing waits for them.
    """

    def __init__(self, calls_at_once: int = CALLS_AT_ONCE, name: str = "store") -> None:
        self.name = name
        self._calls_at_once = calls_at_once
        urgent = Lane(self, calls_at_once)
        self.staging = Lane(self, STAGING_AT_ONCE)
        self.background = Lane(self, BACKGROUND_AT_ONCE)
        self._lanes = (urgent, self.staging, self.background)
        self.run = urgent.run

    async def wait_for_thread(self, lane: Lane) -> None:
        """Wait for a thread."""
        if self._has_room(lane) and not lane.waiting:
            lane.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        lane.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came just now: pass it on
                self.free_thread(lane)
            raise

    def free_thread(self, lane: Lane) -> None:
        """Free the thread of a call that has returned."""
        lane.running -= 1
        for one in self._lanes:
            while one.waiting and self._has_room(one):
                turn = one.waiting.popleft()
                if not turn.done():
                    one.running += 1
                    turn.set_result(None)

    def _has_room(self, lane: Lane) -> bool:
        return lane.running < lane.at_once and sum(one.running for one in self._lanes) < self._calls_at_once
