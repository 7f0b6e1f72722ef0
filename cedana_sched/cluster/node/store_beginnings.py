"""Whether a dump may begin a store: a folder looks as empty where its mount is away as where nothing was saved yet.

A node that has never seen the store cannot tell them apart. What it saved into the empty folder nobody else would find,
and pods would go back to an older snapshot, or to none. But the cluster knows whether anything was saved. So before a
node lays the first thing into a folder, it looks whether a Checkpoint names a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.orders import CheckpointFailed, Dump, Order, Outcome
from cedana_sched.store.mark import has_store


class _Status(msgspec.Struct, frozen=True):
    snapshot: dict[str, msgspec.Raw] | None = None


class _Saved(msgspec.Struct, frozen=True):
    """A Checkpoint, as far as it says whether there is a snapshot."""

    status: _Status = _Status()


class StoreBeginnings:
    """Performs orders, and refuses dumps into a folder in place of the store.

    Args:
        api: knows every Checkpoint.
        perform: does it.
        folder: the store; None where it is no folder.
    """

    def __init__(self, api: Api, perform: Callable[[Order], AsyncIterator[Outcome]], folder: Path | None) -> None:
        self._api = api
        self._perform = perform
        self._folder = folder

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `orders.Perform`.

        Raises:
            CedanaSchedError: it could not be done now, and nothing is decided by that.
        """
        if isinstance(order, Dump) and await self._is_away():
            why = (
                f"the store at {self._folder} is not mounted on this node: nothing is there, and Checkpoints of this"
                " cluster name snapshots; mount it. To begin an empty store, run 'cedana-sched store check' with it"
            )
            yield CheckpointFailed(order.checkpoint_uid, why, retryable=True)
            return
        async for outcome in self._perform(order):
            yield outcome

    async def _is_away(self) -> bool:
        if self._folder is None or await asyncio.to_thread(has_store, self._folder):
            return False
        checkpoints, _ = await self._api.list_all(CHECKPOINTS, into=_Saved)
        return any(one.status.snapshot for one in checkpoints)
