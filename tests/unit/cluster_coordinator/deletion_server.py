"""An API server in memory that keeps what has finalizers, tells mirrors of every change, and has agents that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from cedana_sched.cluster.coordinator.objects import key_of, to_object
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.objects import Node
from cedana_sched.kube.own_kinds.checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.watching import Changed, Deleted, Informer, Listed
from cedana_sched.model import codec
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import DiscardCancelled, Order, Outcome, RemoveSnapshot, SnapshotRemoved
from cedana_sched.model.records import Checkpoint
from tests.unit.cluster_coordinator.fake_api_server import FakeApiServer, Key

SYSTEM = "cedana-system"
Agent = Callable[[Any], Outcome | None]
"""What an agent answers; None: nothing."""


class _Told:
    """A watch that is fed by hand."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    async def changes(self) -> Any:
        yield Listed(())
        while True:
            yield await self.queue.get()


class DeletionServer(FakeApiServer):
    """`store` is what agents remove from; an agent that is not in `agents` removes, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.store: set[SnapshotRef] = set()
        self.agents: dict[str, Agent] = {}
        self.asked: list[str] = []
        """Nodes whose agents had something to do, in order."""
        self.discarded: list[DiscardCancelled] = []
        self.moved = asyncio.Event()
        """Set whenever something has happened."""
        self._told, self._nodes_told = _Told(), _Told()
        self.checkpoints: Informer[KnownCheckpoint] = Informer(cast("Any", self._told))
        self.nodes: Informer[Node] = Informer(cast("Any", self._nodes_told))

    def add(self, checkpoint: Checkpoint, **metadata: Any) -> Key:
        """The object of a record that is forgotten, unless `labels` say that it is not, and its snapshot."""
        body = to_object(checkpoint, SYSTEM)
        body["metadata"] |= {"uid": f"uid-{checkpoint.uid}", **metadata}
        if "labels" not in metadata:
            body["metadata"]["labels"][names.ARCHIVED] = "true"
        key = ("Checkpoint", *key_of(checkpoint, SYSTEM))
        self.objects[key] = body
        if checkpoint.snapshot is not None:
            self.store.add(checkpoint.snapshot)
        self._changed(key)
        return key

    def node(self, name: str, *, ready: bool = True) -> None:
        self.version += 1
        labels = {names.NODE_PREPARED: "true"} if ready else {}
        conditions = [{"type": "Ready", "status": "True"}]
        metadata = {"name": name, "uid": name, "labels": labels, "resourceVersion": str(self.version)}
        node = msgspec.convert({"metadata": metadata, "status": {"conditions": conditions}}, Node)
        self._nodes_told.queue.put_nowait(Changed(node))

    def settle(self, key: Key, checkpoint: Checkpoint) -> None:
        """What the projection does with a record that has moved on."""
        self.objects[key]["status"] |= to_object(checkpoint, SYSTEM)["status"]
        self._changed(key)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        self._count()
        key = (resource.kind, namespace or "", name)
        if (stored := self.objects.get(key)) is None:
            return
        assert uid in {None, stored["metadata"]["uid"]}
        if stored["metadata"].get("finalizers"):
            stored["metadata"].setdefault("deletionTimestamp", "2026-11-21T12:00:00Z")
            self._changed(key)
        else:
            self._gone(key)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object,
        *,
        subresource: str | None = None,
    ) -> None:
        stored = self._stored(resource, name, namespace)
        wanted = patch.get("metadata", {}).get("resourceVersion", stored["metadata"]["resourceVersion"])
        if wanted != stored["metadata"]["resourceVersion"]:
            self._count()
            raise ConflictError("changed", status=409, reason="Conflict")
        assert "deletionTimestamp" not in stored["metadata"] or set(
            patch.get("metadata", {}).get("finalizers", ())
        ) <= set(stored["metadata"]["finalizers"]), "nothing may be added to what is deleted"
        try:
            await super().patch(resource, name, namespace, patch, subresource=subresource)
        finally:
            key = (resource.kind, namespace or "", name)
            if "deletionTimestamp" in stored["metadata"] and not stored["metadata"]["finalizers"]:
                self._gone(key)
            else:
                self._changed(key)

    def tell(self, key: Key) -> None:
        """Have an object seen once more, as by a watch that begins anew."""
        self._changed(key)

    def _changed(self, key: Key) -> None:
        self.version += 1
        self.moved.set()
        self.objects[key]["metadata"]["resourceVersion"] = str(self.version)
        self._told.queue.put_nowait(Changed(self._as(self.objects[key], KnownCheckpoint)))
        asyncio.get_running_loop().call_soon(self._obey, key)

    def _gone(self, key: Key) -> None:
        self.moved.set()
        self._told.queue.put_nowait(Deleted(self._as(self.objects.pop(key), KnownCheckpoint)))

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
            status["answer"] = {"number": given["number"], "outcome": codec.to_builtins(outcome)}
            self._changed(key)

    def _remove(self, order: RemoveSnapshot | DiscardCancelled) -> Outcome:
        if isinstance(order, DiscardCancelled):
            self.discarded.append(order)
        else:
            self.store.discard(order.snapshot)
        return SnapshotRemoved(order.checkpoint_uid)
