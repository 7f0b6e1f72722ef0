"""Threads for calls to the store: one that does not answer must not hold up freezes, thaws and kills, nor our end.

The event loop's own threads are few (six on two CPUs), the journal and the freezer use them too, and a process waits
for them before it ends. These are daemons: what they write is made to be cut off at any instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

CALLS_AT_ONCE = 8

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class StoreThreads:
    """At most `CALLS_AT_ONCE` calls run; the others wait."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(CALLS_AT_ONCE)

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run it in a thread. A caller that is cancelled leaves; the call runs on."""
        async with self._free:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[R] = loop.create_future()

            def work() -> None:
                try:
                    result = call(*arguments, **named)
                except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
                    tell(answer.set_exception, error)
                else:
                    tell(answer.set_result, result)

            def tell(how: Callable[[T], None], what: T) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(lambda: None if answer.done() else how(what))

            threading.Thread(target=work, name=f"store {call.__name__}", daemon=True).start()
            return await answer
