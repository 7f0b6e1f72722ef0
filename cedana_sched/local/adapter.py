"""The embedded scheduler's adapter: implements the adapter contract on the engine's scheduling loop.

Every preemption is held already: after a signal, the loop terminates no victim before the release of the signal. So
`hold` does nothing, and the hold has no limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from cedana_sched.adapter.contract import Adapter, HoldsEvictions, Report
from cedana_sched.local.jobs.evictions import ADAPTER
from cedana_sched.model.preemption import Release, Signal


class SchedulerBackend(Protocol):
    """The scheduler behind the adapter, such as `SchedulingLoop`."""

    def subscribe(self, sink: Callable[[Report], None]) -> tuple[Report, ...]:
        """Return all pending reports; `sink` receives all later ones, without a gap."""
        ...

    def unsubscribe(self, sink: Callable[[Report], None]) -> None:
        """Stop reports to `sink`."""
        ...

    async def apply_release(self, release: Release) -> None:
        """Apply the verdicts. Idempotent.

        Raises:
            RetryableError: nothing was done; the caller retries.
        """
        ...


class EmbeddedAdapter:
    """The adapter of the embedded engine's jobs."""

    name: ClassVar[str] = ADAPTER

    def __init__(self, backend: SchedulerBackend) -> None:
        self._backend = backend

    async def reports(self) -> AsyncIterator[Report]:
        """Yield pending reports, then new ones, until the reader closes the iterator."""
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
        """Release a held preemption; see `Adapter.release`."""
        await self._backend.apply_release(release)

    async def hold(self, signal: Signal) -> float | None:  # noqa: ARG002  # every signal is held already
        """Do nothing: the preemption is held without limit."""
        return None


if TYPE_CHECKING:

    def _fulfils(adapter: EmbeddedAdapter) -> tuple[Adapter, HoldsEvictions]:
        return adapter, adapter
