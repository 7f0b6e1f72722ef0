"""The embedded scheduler's adapter: the engine's own scheduling loop, seen through the contract.

A preemption here can always be held: the loop terminates nobody for whom it has given a signal before the release
of that signal. So `hold` has nothing to do, and no limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from cedana_sched.adapter.contract import Adapter, HoldsEvictions, Report
from cedana_sched.local.jobs.evictions import ADAPTER
from cedana_sched.model.preemption import Release, Signal


class SchedulerBackend(Protocol):
    """What the adapter needs of a scheduler; `SchedulingLoop` is one."""

    def subscribe(self, sink: Callable[[Report], None]) -> tuple[Report, ...]:
        """Everything that is pending now; `sink` gets what happens from now on, without a gap between."""
        ...

    def unsubscribe(self, sink: Callable[[Report], None]) -> None:
        """`sink` hears nothing any more."""
        ...

    async def released(self, release: Release) -> None:
        """Act on the verdicts; repeating it is harmless.

        Raises:
            RetryableError: nothing was done, come again.
        """
        ...


class EmbeddedAdapter:
    """Jobs of the embedded engine."""

    name: ClassVar[str] = ADAPTER

    def __init__(self, backend: SchedulerBackend) -> None:
        self._backend = backend

    async def reports(self) -> AsyncIterator[Report]:
        """What is pending, then what happens, until the reader goes away."""
        queue: asyncio.Queue[Report] = asyncio.Queue()
        pending = self._backend.subscribe(queue.put_nowait)
        try:
            for report in pending:
                yield report
            while True:
                yield await queue.get()
        finally:
            self._backend.unsubscribe(queue.put_nowait)

    async def release(self, release: Release) -> None:
        """Let the scheduler go on; see `Adapter.release`."""
        await self._backend.released(release)

    async def hold(self, signal: Signal) -> float | None:  # noqa: ARG002  # whatever it is, it is held already
        """Nothing to do, without limit."""
        return None


if TYPE_CHECKING:

    def _fulfils(adapter: EmbeddedAdapter) -> tuple[Adapter, HoldsEvictions]:
        return adapter, adapter
