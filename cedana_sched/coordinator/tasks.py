"""Background tasks with an owner and a name: one of each name at a time, none forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


def pauses(first: float, most: float) -> Iterator[float]:
    """Seconds to wait between attempts: doubling from `first` up to `most`, without end."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, most)


class Tasks:
    """The tasks of one task group, by name."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start `work` under `name`; False when a task of that name is still at it."""
        if name in self._running:
            return False
        task = self._group.create_task(work(), name=name)
        self._running[name] = task
        task.add_done_callback(lambda done: self._done(name, done))
        return True

    def cancel(self, name: str) -> None:
        """Stop the task of that name, if there is one; its name is free at once."""
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()

    def free(self, name: str) -> None:
        """Called by a task that has given its answer: another may start under its name at once."""
        self._running.pop(name, None)

    def names(self) -> list[str]:
        """What is running."""
        return sorted(self._running)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._running.get(name) is task:
            del self._running[name]
