"""Limits how many inspections of workloads run at once, because tenants can make one last for ever.

A process that waits for a file system of its own keeps files of /proc locked, and a read of such a file, or of its
volumes, takes a thread until the process ends. So an inspection counts until it has returned, also when its caller
waits no longer. A workload has one, and a namespace few: its pods alone are left out, and those of others are looked
at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot.preflight import CutShortError

PER_NAMESPACE: Final = 4
IN_ALL: Final = 32
"""Of one node: those of eight namespaces."""

R = TypeVar("R")


class TooManyInspectionsError(CutShortError):
    """Too many inspections have not returned; another one may begin once one has."""


class _Running(NamedTuple):
    namespace: str
    task: asyncio.Task[Any]


class LimitedInspections:
    """Inspections that have not returned; not thread-safe, for one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: dict[str, _Running] = {}
        """By uid of the workload."""
        self._returned = asyncio.Event()

    async def run(self, workload: WorkloadRef, inspection: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run an inspection, which runs on when the caller is cancelled.

        Raises:
            TooManyInspectionsError: earlier ones have not returned.
        """
        if (why := self._refusal(workload)) is not None:
            raise TooManyInspectionsError(why)
        task = asyncio.create_task(inspection(), name=f"{self._name} at {workload.name}")
        self._running[workload.uid] = _Running(workload.namespace, task)
        task.add_done_callback(lambda done: self._on_returned(workload.uid, done))
        return await asyncio.shield(task)

    async def run_in_turn(self, workload: WorkloadRef, inspection: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Like `run`, but wait until enough of the earlier ones have returned."""
        while self._refusal(workload) is not None:
            self._returned.clear()
            await self._returned.wait()
        return await self.run(workload, inspection)

    def _refusal(self, workload: WorkloadRef) -> str | None:
        if workload.uid in self._running:
            return "an earlier look has not returned"
        if sum(one.namespace == workload.namespace for one in self._running.values()) >= PER_NAMESPACE:
            return f"{PER_NAMESPACE} looks at other workloads of its namespace have not returned"
        if len(self._running) >= IN_ALL:
            return f"{IN_ALL} looks at other workloads of its node have not returned"
        return None

    def _on_returned(self, uid: str, done: asyncio.Task[Any]) -> None:
        del self._running[uid]
        if not done.cancelled():
            done.exception()  # of interest only to the caller, who may be gone
        self._returned.set()
