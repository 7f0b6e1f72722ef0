"""Threads for calls to the store: one that does not answer must not hold up freezes, thaws and kills.

The event loop's own threads are few (six on two CPUs), and the journal and the freezer use them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

CALLS_AT_ONCE = 8

P = ParamSpec("P")
R = TypeVar("R")


class StoreThreads:
    """At most `CALLS_AT_ONCE` calls run; the others wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="store")

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run it in a thread. A caller that is cancelled leaves; the call runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*arguments, **named))

    def close(self) -> None:
        """Begin no call any more; those that run are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
