"""A work queue by key: one worker per key at a time, again if the key was added meanwhile, retries with backoff.

Keys of several groups, such as namespaces, are served in turn, so that the many of one group delay no other group's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import WATCHES, Backoff

log = structlog.get_logger(__name__)

WORKERS = 8

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A work queue like those of Kubernetes controllers; a defect, too, affects only its own key.

    Args:
        name: for the log.
        perform: reconciles a key; reads the current state each time.
        group_of: returns the group of a key; by default all keys are of one, and are served in their order.
    """

    def __init__(
        self,
        name: str,
        perform: Callable[[K], Awaitable[None]],
        *,
        group_of: Callable[[K], Hashable] = lambda _: None,
    ) -> None:
        self._name = name
        self._perform = perform
        self._ready: _KeysInTurn[K] = _KeysInTurn(group_of)
        self._waiting: set[K] = set()
        """Keys in the queue, or to be queued when their worker is done."""
        self._active: set[K] = set()
        self._backoffs: dict[K, Backoff] = {}
        """Of keys that have failed since their last success."""

    def add(self, key: K) -> None:
        """Queue a key; returns at once."""
        if key not in self._waiting:
            self._waiting.add(key)
            if key not in self._active:
                self._ready.put_nowait(key)

    async def run(self) -> None:
        """Work, forever."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"{self._name} {number}")

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._active.add(key)
            try:
                await self._perform(key)
                self._backoffs.pop(key, None)
            except CedanaSchedError as error:
                pause = self._next_pause(key)
                log.warning("failed, tried again", what=self._name, key=key, error=str(error), pause_seconds=pause)
                loop.call_later(pause, self.add, key)
            except Exception:  # a defect shown by one key must not affect the others
                pause = self._next_pause(key)
                log.exception("failed, tried again", what=self._name, key=key, pause_seconds=pause)
                loop.call_later(pause, self.add, key)
            finally:
                self._active.discard(key)
                if key in self._waiting:
                    self._ready.put_nowait(key)

    def _next_pause(self, key: K) -> float:
        return self._backoffs.setdefault(key, Backoff(WATCHES)).next_pause()


class _KeysInTurn(Generic[K]):
    """A queue that serves one key of each group in turn; within a group in their order."""

    def __init__(self, group_of: Callable[[K], Hashable]) -> None:
        self._group_of = group_of
        self._of_group: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """The group whose turn is next comes first; none is empty."""
        self._available = asyncio.Semaphore(0)

    def put_nowait(self, key: K) -> None:
        self._of_group.setdefault(self._group_of(key), deque()).append(key)
        self._available.release()

    async def get(self) -> K:
        await self._available.acquire()
        group, keys = self._of_group.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._of_group[group] = keys
        return key
