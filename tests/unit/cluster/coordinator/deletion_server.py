"""An API server with agents that obey orders to remove snapshots, and the caches of a coordinator beside it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

import msgspec

from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, NODES
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model import codec
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import DiscardCancelled, Order, Outcome, RemoveSnapshot, SnapshotRemoved
from cedana_sched.model.records import Checkpoint
from cedana_sched.testing import FakeApi, Key
from cedana_sched.testing.store import Change, key_of

SYSTEM = "cedana-system"
Agent = Callable[[Any], Outcome | None]
"""What an agent answers; None: nothing."""


class DeletionServer(FakeApi):
    """`snapshots` are what agents remove; an agent that is not in `agents` removes, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: set[SnapshotRef] = set()
        self.agents: dict[str, Agent] = {}
        self.asked: list[str] = []
        """Nodes whose agents had something to do, in order."""
        self.discarded: list[DiscardCancelled] = []
        self.moved = asyncio.Event()
        """Set whenever something has happened."""
        self.checkpoints = Informer(Watch(self, CHECKPOINTS, KnownCheckpoint))
        self.nodes = Informer(Watch(self, NODES, Node))
        self.store.subscribe(self._see)

    def add(self, checkpoint: Checkpoint, **metadata: Any) -> Key:
        """The object of a record that is forgotten, unless `labels` say that it is not, and its snapshot."""
        body = to_object(checkpoint, SYSTEM)
        body["metadata"] |= {"uid": f"uid-{checkpoint.uid}", **metadata}
        if "labels" not in metadata:
            body["metadata"]["labels"][names.ARCHIVED] = "true"
        if checkpoint.snapshot is not None:
            self.snapshots.add(checkpoint.snapshot)
        return key_of(CHECKPOINTS, self.put(CHECKPOINTS, body))

    def node(self, name: str, *, ready: bool = True) -> None:
        labels = {names.NODE_PREPARED: "true"} if ready else {}
        conditions = [{"type": "Ready", "status": "True"}]
        self.put(
            NODES, {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"conditions": conditions}}
        )

    def settle(self, key: Key, checkpoint: Checkpoint) -> None:
        """What the projection does with a record that has moved on."""
        self._write_status(key, to_object(checkpoint, SYSTEM)["status"])

    def tell(self, key: Key) -> None:
        """Have an object seen once more, as by a watch that begins anew."""
        self.repeat_current_state()
        asyncio.get_running_loop().call_soon(self._obey, key)

    def _see(self, change: Change) -> None:
        self.moved.set()
        if change.key[0] == CHECKPOINTS:
            asyncio.get_running_loop().call_soon(self._obey, change.key)

    def _write_status(self, key: Key, status: Object) -> None:
        body = copy.deepcopy(self.objects[key])
        body["status"] |= status
        self.put(CHECKPOINTS, body)

    def _obey(self, key: Key) -> None:
        """As an agent's watch would have it."""
        body = self.objects.get(key)
        if body is None or body["metadata"]["labels"].get(names.ARCHIVED) == "true":
            return
        status, node = body["status"], body["metadata"]["labels"][names.NODE]
        given, answered = status.get("order"), status.get("answer")
        if given is None or (answered and answered["number"] >= given["number"]):
            return
        order: Order = codec.decode(msgspec.json.encode(given["order"]), Order)  # type: ignore[arg-type]  # a union
        if not isinstance(order, RemoveSnapshot | DiscardCancelled):
            return
        self.asked.append(node)
        self.moved.set()
        if (outcome := self.agents.get(node, self._remove)(order)) is not None:
            answer = {"number": given["number"], "outcome": codec.to_builtins(outcome)}
            self._write_status(key, {"answer": answer})

    def _remove(self, order: RemoveSnapshot | DiscardCancelled) -> Outcome:
        if isinstance(order, DiscardCancelled):
            self.discarded.append(order)
        else:
            self.snapshots.discard(order.snapshot)
        return SnapshotRemoved(order.checkpoint_uid)


class FieldWriter:
    """What makes one field of the status of Checkpoints true; inside the block it runs, and they are cached."""

    def __init__(self, server: DeletionServer, field: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.server = server
        self._field = field
        self._run = run

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(one) for one in (self.server.checkpoints.run(), self._run())]
        await asyncio.wait_for(self.server.checkpoints.synced.wait(), 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_marked(self, key: Key) -> bool:
        status: dict[str, Any] = self.server.objects[key]["status"]
        return status.get(self._field) is True

    async def wait_marked(self, key: Key) -> None:
        async with asyncio.timeout(60):
            await self.server.until(lambda: self.is_marked(key))
