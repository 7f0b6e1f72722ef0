"""A work queue by key: one worker per key at a time, again if the key was added meanwhile, retries with backoff.

Keys of several groups, such as namespaces, are served in turn, so that the many of one group delay no other group's.
Nor do slow ones: the keys of one group never occupy all workers.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import WATCHES, Backoff

log = structlog.get_logger(__name__)

WORKERS = 8
MOST_OF_GROUP: Final = 6
"""Workers for the keys of one group, if there are several groups."""

K = TypeVar("K", bound=Hashable)

_NO_GROUP: Final = object()


class WorkQueue(Generic[K]):
    """A work queue like those of Kubernetes controllers; a defect, too, affects only its own key.

    Args:
        name: for the log.
        perform: reconciles a key; reads the current state each time.
        group_of: returns the group of a key; None: all keys are of one, and are served in their order.
    """

    def __init__(
        self,
        name: str,
        perform: Callable[[K], Awaitable[None]],
        *,
        group_of: Callable[[K], Hashable] | None = None,
    ) -> None:
        self._name = name
        self._perform = perform
        self._ready: _KeysInTurn[K] = (
            _KeysInTurn(lambda _: None, WORKERS) if group_of is None else _KeysInTurn(group_of, MOST_OF_GROUP)
        )
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
                self._ready.on_done(key)
                if key in self._waiting:
                    self._ready.put_nowait(key)

    def _next_pause(self, key: K) -> float:
        return self._backoffs.setdefault(key, Backoff(WATCHES)).next_pause()


class _KeysInTurn(Generic[K]):
    """A queue that serves one key of each group in turn; within a group in their order.

    Args:
        group_of: returns the group of a key.
        most_of_group: keys of one group that are taken at a time.
    """

    def __init__(self, group_of: Callable[[K], Hashable], most_of_group: int) -> None:
        self._group_of = group_of
        self._most_of_group = most_of_group
        self._of_group: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """The group whose turn is next comes first; none is empty."""
        self._taken: dict[K, Hashable] = {}
        """Groups of the keys that are taken and not done."""
        self._taken_of_group: Counter[Hashable] = Counter()
        self._changed = asyncio.Event()

    def put_nowait(self, key: K) -> None:
        self._of_group.setdefault(self._group_of(key), deque()).append(key)
        self._changed.set()

    async def get(self) -> K:
        """Take the next key; `on_done` must follow."""
        while True:
            group = next((one for one in self._of_group if self._taken_of_group[one] < self._most_of_group), _NO_GROUP)
            if group is not _NO_GROUP:
                return self._take(group)
            self._changed.clear()
            await self._changed.wait()

    def on_done(self, key: K) -> None:
        """Return the place of a taken key."""
        group = self._taken.pop(key)
        self._taken_of_group[group] -= 1
        if not self._taken_of_group[group]:
            del self._taken_of_group[group]
        self._changed.set()

    def _take(self, group: Hashable) -> K:
        keys = self._of_group.pop(group)
        key = keys.popleft()
        if keys:
            self._of_group[group] = keys
        self._taken[key] = group
        self._taken_of_group[group] += 1
        return key
