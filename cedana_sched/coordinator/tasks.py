"""Owned background tasks, at most one per name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Named tasks of one task group."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start `work` under `name`; False if a task of that name is running."""
        if name in self._running:
            return False
        task = self._group.create_task(work(), name=name)
        self._running[name] = task
        task.add_done_callback(lambda done: self._done(name, done))
        return True

    def cancel(self, name: str) -> None:
        """Cancel the task of that name, if any; the name is free at once."""
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()

    def free_name(self, name: str) -> None:
        """Free the name of a task that has its result, while the task finishes."""
        self._running.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of running tasks."""
        return sorted(self._running)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._running.get(name) is task:
            del self._running[name]
