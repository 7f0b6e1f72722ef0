"""Guards the first dump into a store: an unmounted folder looks as empty as a store without snapshots.

A node that has never used the store cannot distinguish the two. No other node would find a snapshot written into the
empty folder, and pods would be restored from an older snapshot, or start cold. But the cluster has a record of saved
snapshots. So before a node writes the first object into a folder, it checks whether a Checkpoint names a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_checkpoint import SavedCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.orders import CheckpointFailed, Dump, Order, Outcome
from cedana_sched.store.store_presence import has_store


class UnmountedStoreGuard:
    """Performs orders, and refuses dumps into a folder that is not the store.

    Args:
        api: lists every Checkpoint.
        perform: performs an accepted order.
        folder: the store; None if the store is not a folder.
    """

    def __init__(self, api: Api, perform: Callable[[Order], AsyncIterator[Outcome]], folder: Path | None) -> None:
        self._api = api
        self._perform = perform
        self._folder = folder

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `order_feed.Perform`.

        Raises:
            CedanaSchedError: a transient failure; no outcome is decided.
        """
        if isinstance(order, Dump) and await self._is_store_missing():
            why = (
                f"the store at {self._folder} is not mounted on this node: nothing is there, and Checkpoints of this"
                " cluster name snapshots; mount it. To begin an empty store, run 'cedana-sched store check' with it"
            )
            yield CheckpointFailed(order.checkpoint_uid, why, retryable=True)
            return
        async for outcome in self._perform(order):
            yield outcome

    async def _is_store_missing(self) -> bool:
        if self._folder is None or await asyncio.to_thread(has_store, self._folder):
            return False
        checkpoints, _ = await self._api.list_all(CHECKPOINTS, into=SavedCheckpoint)
        return any(one.status.snapshot for one in checkpoints)
