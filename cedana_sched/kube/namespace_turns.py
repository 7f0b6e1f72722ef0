"""Turns for work that costs memory or time of all namespaces: few at a time, and fewer of one namespace.

Tenants decide how often such work is due, and by the sizes of their objects how long it takes. In one queue for all,
the work of one namespace would delay that of all others. Here each namespace has a queue of its own, and these are
served in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NamespaceTurns:
    """Limits how many blocks of `turn` run at a time.

    Args:
        most: of all namespaces.
        most_of_namespace: of one.
    """

    def __init__(self, most: int, most_of_namespace: int) -> None:
        self._most = most
        self._most_of_namespace = most_of_namespace
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The namespace whose turn is next comes first; none is empty."""

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Run the block once it is the namespace's turn."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(granted)
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._end(namespace)
            else:
                self._drop(namespace, granted)

    def _grant(self) -> None:
        """Begin what may run now, one block of each namespace in turn."""
        while self._running.total() < self._most:
            has_room = (name for name in self._waiting if self._running[name] < self._most_of_namespace)
            if (namespace := next(has_room, None)) is None:
                return
            granted = self._waiting[namespace].popleft()
            self._waiting.move_to_end(namespace)
            self._drop_if_empty(namespace)
            if not granted.cancelled():  # its block is about to be dropped
                self._running[namespace] += 1
                granted.set_result(None)

    def _end(self, namespace: str) -> None:
        self._running[namespace] -= 1
        if not self._running[namespace]:
            del self._running[namespace]
        self._grant()

    def _drop(self, namespace: str, cancelled: asyncio.Future[None]) -> None:
        if cancelled in self._waiting.get(namespace, ()):
            self._waiting[namespace].remove(cancelled)
            self._drop_if_empty(namespace)

    def _drop_if_empty(self, namespace: str) -> None:
        if not self._waiting[namespace]:
            del self._waiting[namespace]
