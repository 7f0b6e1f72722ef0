"""Graceful shutdown of an agent, or of the keeper of a node's holds: it finishes work that its successor cannot.

A DaemonSet's rollout ends one agent before it starts the next on that node. A frozen workload would stay frozen in
between, so after SIGTERM the component keeps serving until no such work is in flight. The pod's termination grace
period bounds that; an agent does not wait for restores or holds, which its successor continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)


class DrainablePart(Protocol):
    """A part that may have work in flight that only this process can finish."""

    def busy_with(self) -> list[str]:
        """Return descriptions of the work in flight; empty: it may end now."""
        ...

    def subscribe_to_changes(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever that may have changed."""
        ...


async def wait_idle(parts: Iterable[DrainablePart]) -> None:
    """Return once no part is busy."""
    parts = tuple(parts)
    changed = asyncio.Event()
    for part in parts:
        part.subscribe_to_changes(changed.set)
    while under_way := [what for part in parts for what in part.busy_with()]:
        log.info("component is to end, and finishes first", under_way=under_way)
        await changed.wait()
        changed.clear()


async def run_until_drained(
    stopping: asyncio.Event, work: Coroutine[Any, Any, None], parts: Iterable[DrainablePart]
) -> None:
    """Run `work` until `stopping` is set, and then until no part is busy. Exceptions of `work` propagate."""
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


async def _wait_drained(stopping: asyncio.Event, parts: Iterable[DrainablePart]) -> None:
    await stopping.wait()
    await wait_idle(parts)
