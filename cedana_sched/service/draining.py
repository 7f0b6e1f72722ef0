"""The end of a component that another one replaces: what it has begun, it finishes first.

It is an agent, or the keeper of a node's holds. A DaemonSet's rollout ends one agent before it starts the next on that
node. A workload that is frozen would stay so for the time between, so after SIGTERM it serves on until nothing of the
kind is under way. The pod's termination grace period bounds that; an agent waits for no returns or holds, whoever comes
next goes on with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)


class Busy(Protocol):
    """Something that may be in the middle of what nobody else can finish."""

    def busy_with(self) -> list[str]:
        """What it is in the middle of, in words; nothing: it may end now."""
        ...

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have this called whenever that may have changed."""
        ...


async def wait_idle(parts: Iterable[Busy]) -> None:
    """Return when none of them is busy."""
    parts = tuple(parts)
    changed = asyncio.Event()
    for part in parts:
        part.on_change(changed.set)
    while under_way := [what for part in parts for what in part.busy_with()]:
        log.info("component is to end, and finishes first", under_way=under_way)
        await changed.wait()
        changed.clear()


async def until_drained(stopping: asyncio.Event, work: Coroutine[Any, Any, None], parts: Iterable[Busy]) -> None:
    """Do `work` until `stopping` is set, and then until no part is busy. What `work` raises is raised."""
    working = asyncio.create_task(work, name="agent")
    draining = asyncio.create_task(_wait_drained(stopping, parts), name="draining")
    try:
        await asyncio.wait({working, draining}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        else:
            draining.result()
    finally:
        for task in (working, draining):
            task.cancel()
        await asyncio.gather(working, draining, return_exceptions=True)


async def _wait_drained(stopping: asyncio.Event, parts: Iterable[Busy]) -> None:
    await stopping.wait()
    await wait_idle(parts)
