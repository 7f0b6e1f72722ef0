"""Whoever reads an adapter's reports: each from what is pending on, and all that happens while it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

R = TypeVar("R")


class Readers(Generic[R]):
    """The readers of one adapter; all of it in one event loop."""

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[R]] = []

    @contextmanager
    def reading(self, pending: Iterable[R] = ()) -> Iterator[asyncio.Queue[R]]:
        """A queue of what is pending, and of what is published inside the block."""
        queue: asyncio.Queue[R] = asyncio.Queue()
        for report in pending:
            queue.put_nowait(report)
        self._queues.append(queue)
        try:
            yield queue
        finally:
            self._queues.remove(queue)

    def publish(self, report: R) -> None:
        """Give a report to everybody who reads."""
        for queue in self._queues:
            queue.put_nowait(report)
