"""Agents of fake nodes: the product's own order feed on each, with nothing behind it that freezes or stores.

Every order is answered at once with the outcome that a real agent gives when all goes well, so that what is measured is
the coordinator, the webhooks and the API server.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.client import Api
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    ApplyRetention,
    Committed,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    Outcome,
    Progress,
    RemoveSnapshot,
    RestoreSnapshot,
    RestoreSucceeded,
    RetentionApplied,
    SnapshotFound,
    SnapshotRemoved,
    Stage,
    Staged,
    StartCold,
    StartedCold,
    Thaw,
    Thawed,
    WorkloadFailed,
)
from cedana_sched.model.records import Transfer

_CLIENTS = 16
_AT_ONCE = 2 * _CLIENTS
"""So many agents begin together: a thousand, in one process, would wait in vain for their TLS handshakes."""
_PROGRESSES = 5
_STATE = Transfer(8 << 30, 2 << 30, 5 << 30, 1 << 30)
"""What each victim is said to have saved (bytes)."""


class Agents:
    """All agents; what they have "stored" they remember together, as a store does."""

    def __init__(self) -> None:
        self._generations: defaultdict[Identity, int] = defaultdict(int)

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `cedana_sched.cluster.node.order_feed.Perform`."""
        match order:
            case Dump():
                for part in range(1, _PROGRESSES):
                    yield Progress(order.checkpoint_uid, Transfer(_STATE.read_bytes * part // _PROGRESSES, 0, 0, 0))
                self._generations[order.identity] += 1
                snapshot = SnapshotRef(order.identity, self._generations[order.identity])
                yield Committed(order.checkpoint_uid, snapshot, _STATE)
            case FindSnapshot():
                generation = self._generations.get(order.identity)
                yield SnapshotFound(order.restore_uid, SnapshotRef(order.identity, generation) if generation else None)
            case _:
                yield _OUTCOMES[type(order)](order)

    @asynccontextmanager
    async def on(self, kubeconfig: Path, nodes: Sequence[str]) -> AsyncIterator[None]:
        """One agent on each of these nodes, inside the block; returns when all have listed their orders."""
        async with open_clients(kubeconfig) as clients, asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            try:
                for first in range(0, len(nodes), _AT_ONCE):
                    some = zip(nodes[first : first + _AT_ONCE], itertools.cycle(clients), strict=False)
                    feeds = {node: OrderFeed(client, node, self.perform) for node, client in some}
                    tasks += [group.create_task(feed.run(), name=f"agent {node}") for node, feed in feeds.items()]
                    for feed in feeds.values():
                        await feed.wait_synced()
                yield
            finally:
                for task in tasks:
                    task.cancel()


@asynccontextmanager
async def open_clients(kubeconfig: Path) -> AsyncIterator[list[Api]]:
    """Clients that many nodes share: each node's own would be a thousand pools of connections."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Api.open(str(kubeconfig))) for _ in range(_CLIENTS)]


_OUTCOMES: dict[type, Callable[..., Outcome]] = {
    Freeze: lambda order: Frozen(order.checkpoint_uid),
    Kill: lambda order: Killed(order.checkpoint_uid, still_frozen=True),
    Thaw: lambda order: Thawed(order.checkpoint_uid),
    Abort: lambda order: Aborted(order.checkpoint_uid),
    ApplyRetention: lambda order: RetentionApplied(order.checkpoint_uid),
    RemoveSnapshot: lambda order: SnapshotRemoved(order.checkpoint_uid),
    Stage: lambda order: Staged(order.restore_uid),
    RestoreSnapshot: lambda order: RestoreSucceeded(order.restore_uid),
    StartCold: lambda order: StartedCold(order.restore_uid),
    FailWorkload: lambda order: WorkloadFailed(order.restore_uid),
}
