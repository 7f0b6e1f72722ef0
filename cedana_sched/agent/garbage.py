"""Collects the garbage of removed snapshots in the store and on this node: late, seldom, and in the background.

A collection lists a whole namespace. So no single checkpoint triggers one: the garbage of many removals on many nodes
is collected together, in two runs, by the node that has the turn (`store/collection_turns.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.store.bounded_listing import CrowdedNamespaceError
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.garbage import GRACE_SECONDS
from cedana_sched.store.garbage_detection import SECOND_RUN_SECONDS
from cedana_sched.store.intents import CLOCK_GRAIN_SECONDS
from cedana_sched.store.snapshot_store import SnapshotStore

log = structlog.get_logger()

EVERY_SECONDS = 300.0
"""From the end of one run over a namespace, on whichever node, to the start of the next."""
CACHE_SECONDS = 6 * 3600.0
"""How often this node's cache is cleaned of snapshots that other nodes have removed."""


class _NoCredentialsError(Exception):
    """This node has no more pods of the namespace, and gets no credentials for it."""


class Garbage:
    """Schedules collections after removals. An agent that exits leaves the rest to the namespace's next collection.

    Args:
        store: the snapshots.
        threads: for calls to the store.
        every_seconds: minimum interval between runs over a namespace.
        second_run_seconds: from the end of a first run to its second one.
        chance: returns numbers from 0 to 1: jitter, so that many nodes do not run at once.
    """

    def __init__(
        self,
        store: SnapshotStore,
        threads: StoreThreads,
        *,
        every_seconds: float = EVERY_SECONDS,
        second_run_seconds: float = SECOND_RUN_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._threads = threads
        self._every_seconds = every_seconds
        self._second_run_seconds = second_run_seconds
        self._chance = chance
        self._left_over: dict[str, float] = {}
        self._collecting: dict[str, asyncio.Task[None]] = {}
        self._tidying: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Clean this node's cache periodically until `close`."""
        self._tidying = asyncio.create_task(self._keep_cache_tidy(), name="tidying of the node's cache")

    def schedule_collection(self, namespace: str) -> None:
        """Schedule a collection after a removal; returns at once, and any number of removals share one collection."""
        self._left_over[namespace] = asyncio.get_running_loop().time()
        if namespace not in self._collecting:
            task = asyncio.create_task(self._collect(namespace), name=f"garbage of {namespace}")
            self._collecting[namespace] = task
            task.add_done_callback(lambda _: self._collecting.pop(namespace, None))

    async def close(self) -> None:
        """Stop collecting."""
        tasks = [*self._collecting.values(), *([self._tidying] if self._tidying else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self, namespace: str) -> None:
        try:
            await asyncio.sleep(self._every_seconds * self._chance())
            while (removed := self._left_over.pop(namespace, None)) is not None:
                condemned = await self._wait_for_run_after(namespace, removed)
                await asyncio.sleep(self._second_run_seconds + self._every_seconds * self._chance())
                await self._wait_for_run_after(namespace, condemned + min(GRACE_SECONDS, self._second_run_seconds))
        except _NoCredentialsError as error:
            log.info("garbage is left to others", namespace=namespace, error=str(error.__cause__))
            self._left_over.pop(namespace, None)
        except CrowdedNamespaceError as error:  # needs an admin; the next removal retries
            log.warning("garbage not collected", namespace=namespace, error=str(error))
            self._left_over.pop(namespace, None)

    async def _wait_for_run_after(self, namespace: str, moment: float) -> float:
        """Wait for a run, on any node, that began after `moment` and has ended; return its end."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                turn = await self._threads.background.run(self._store.collect_in_turn, namespace, self._every_seconds)
            except CredentialsRefusedError as error:
                raise _NoCredentialsError from error
            except CrowdedNamespaceError:
                raise
            except CedanaSchedError as error:
                log.warning("garbage not collected, trying again", namespace=namespace, error=str(error))
            else:
                now, last = loop.time(), turn.last
                if turn.report is not None:
                    return now
                if last is not None and now - last.began_ago > moment + CLOCK_GRAIN_SECONDS:
                    return now - last.ended_ago
            await asyncio.sleep(self._every_seconds * (0.5 + self._chance()))

    async def _keep_cache_tidy(self) -> None:
        while True:
            await asyncio.sleep(CACHE_SECONDS * self._chance())
            try:
                await self._threads.background.run(self._store.tidy_cache)
            except CedanaSchedError as error:
                log.warning("cache not tidied, trying again", error=str(error))
