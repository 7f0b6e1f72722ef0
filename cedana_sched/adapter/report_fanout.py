"""Fan-out of an adapter's reports: each reader gets the pending reports, then all new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

R = TypeVar("R")


class ReportFanout(Generic[R]):
    """The readers of one adapter; not thread-safe, for one event loop."""

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[R]] = []

    @contextmanager
    def subscribed_queue(
        self, pending: Iterable[R] = (), queue: asyncio.Queue[R] | None = None
    ) -> Iterator[asyncio.Queue[R]]:
        """Yield a queue with the pending reports, which also receives reports published inside the block.

        Args:
            pending: reports that come first.
            queue: the reader's, if it reads several fan-outs by one queue; None: a new one.
        """
        queue = asyncio.Queue() if queue is None else queue
        for report in pending:
            queue.put_nowait(report)
        self._queues.append(queue)
        try:
            yield queue
        finally:
            self._queues.remove(queue)

    def publish(self, report: R) -> None:
        """Send a report to every reader."""
        for queue in self._queues:
            queue.put_nowait(report)
