"""Frees what removed snapshots leave in the store: nobody else does where nothing is saved any more."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.store.garbage import GRACE_SECONDS
from cedana_sched.store.snapshots import SnapshotStore

log = structlog.get_logger()

SECOND_RUN_SECONDS = GRACE_SECONDS + 60.0
"""A first run condemns packs, and one that comes after their grace period, by the store's clock, removes them."""


class Garbage:
    """The leftovers of removals. What an agent that ends has not freed goes with the namespace's next collection.

    Args:
        store: where they lie.
        threads: for the calls to it.
        second_run_seconds: from the end of a first run to its second one.
    """

    def __init__(
        self, store: SnapshotStore, threads: StoreThreads, second_run_seconds: float = SECOND_RUN_SECONDS
    ) -> None:
        self._store = store
        self._threads = threads
        self._second_run_seconds = second_run_seconds
        self._left_over: set[str] = set()
        self._collecting: dict[str, asyncio.Task[None]] = {}

    def left_over(self, namespace: str) -> None:
        """A snapshot of it was removed; returns at once, and any number of removals are collected together."""
        self._left_over.add(namespace)
        if namespace not in self._collecting:
            task = asyncio.create_task(self._collect(namespace), name=f"garbage of {namespace}")
            self._collecting[namespace] = task
            task.add_done_callback(lambda _: self._collecting.pop(namespace, None))

    async def close(self) -> None:
        """Collect no more."""
        tasks = tuple(self._collecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self, namespace: str) -> None:
        while namespace in self._left_over:
            self._left_over.discard(namespace)
            await self._run(namespace)
            await asyncio.sleep(self._second_run_seconds)
            await self._run(namespace)

    async def _run(self, namespace: str) -> None:
        try:
            await self._threads.background.run(self._store.collect_garbage, namespace)
        except CedanaSchedError as error:
            log.warning("garbage not collected, trying again", namespace=namespace, problem=str(error))
            self._left_over.add(namespace)
