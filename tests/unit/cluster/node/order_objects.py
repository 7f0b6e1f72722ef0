"""Objects with orders in them, as an API server sends them, for tests of the border at which they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import CHECKPOINTS, PODS, RESTORES, Resource
from cedana_sched.model import codec
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.orders import (
    Abort,
    ApplyRetention,
    CheckpointFailed,
    DiscardCancelled,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Kill,
    Order,
    Outcome,
    RemoveSnapshot,
    RestoreSnapshot,
    Stage,
    StartCold,
    Thaw,
)
from cedana_sched.model.policy import Compression, Retention
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.testing import FakeApi

NODE = "n1"
POD = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
JOB = "0a1b2c3d-0000-4000-8000-000000000001"
CHECKPOINT = f"{JOB}@2026-11-20T10:00:00.000+00:00~2026-11-20T10:00:01Z.{POD}.1"
RESTORE = f"restore.{POD}.2"
WORKLOAD = WorkloadRef(POD, "tenant-a", "md-0", NODE)
IDENTITY = Identity("tenant-a", "md", 3)
SNAPSHOT = SnapshotRef(IDENTITY, 7)
WANTED = SnapshotRef(Identity("tenant-a", "older"), 2)

OF_CHECKPOINTS: tuple[Order, ...] = (
    Freeze(CHECKPOINT, WORKLOAD, timeout_seconds=60.0),
    Dump(CHECKPOINT, WORKLOAD, IDENTITY, Compression.AUTO, "Preempted", "kueue", 60.0, Lineage("r", WANTED)),
    Kill(CHECKPOINT, WORKLOAD),
    Thaw(CHECKPOINT, WORKLOAD),
    Abort(CHECKPOINT, WORKLOAD, IDENTITY, "it was called off"),
    ApplyRetention(CHECKPOINT, IDENTITY, Retention(), (7,)),
    RemoveSnapshot(CHECKPOINT, SNAPSHOT),
    DiscardCancelled(CHECKPOINT, SNAPSHOT.identity),
)
OF_RESTORES: tuple[Order, ...] = (
    FindSnapshot(RESTORE, IDENTITY, avoiding=(6,)),
    FindSnapshot(RESTORE, IDENTITY, WANTED),
    Stage(RESTORE, WORKLOAD, SNAPSHOT),
    Stage(RESTORE, WORKLOAD, WANTED),
    RestoreSnapshot(RESTORE, WORKLOAD, SNAPSHOT),
    StartCold(RESTORE, WORKLOAD, "there is none"),
    FailWorkload(RESTORE, WORKLOAD, "its policy says so"),
)
ORDERS: tuple[tuple[Resource, Order], ...] = (
    *((CHECKPOINTS, order) for order in OF_CHECKPOINTS),
    *((RESTORES, order) for order in OF_RESTORES),
)


def body_with(kind: Resource, order: Order) -> dict[str, Any]:
    """An object of its own namespace, pod and identity that orders this."""
    is_checkpoint = kind == CHECKPOINTS
    spec = {
        "uid": CHECKPOINT if is_checkpoint else RESTORE,
        "podRef": {"uid": POD, "name": WORKLOAD.name, "nodeName": NODE},
        "identity": {"id": IDENTITY.id, "index": IDENTITY.index, "container": IDENTITY.container},
        "policy": {"restoreDeadlineSeconds": 600},
    }
    if not is_checkpoint:
        spec["requestedSnapshot"] = {"id": WANTED.identity.id, "index": 0, "container": "main", "generation": 2}
    return {
        "metadata": {"name": "one", "namespace": "tenant-a", "uid": "u", "resourceVersion": "1"},
        "spec": spec,
        "status": {"step": "Freezing", "order": {"number": 4, "order": codec.to_builtins(order)}},
    }


def read(body: dict[str, Any]) -> OrderedObject:
    """As a watch reads it."""
    return msgspec.json.decode(msgspec.json.encode(body), type=OrderedObject)


class AnsweredApi(FakeApi):
    """Has some pods, and keeps the answers that are written into statuses, of whatever object."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__()
        self.answers: list[Any] = []
        for pod in pods:
            self.put(PODS, msgspec.to_builtins(pod))

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: Any, *, subresource: str | None = None
    ) -> None:
        msgspec.json.encode(patch)
        if "answer" in patch["status"]:
            self.answers.append(patch["status"]["answer"]["outcome"])


def pod_of(workload: WorkloadRef) -> Pod:
    return Pod(Metadata(workload.name, workload.namespace, workload.uid), PodSpec(workload.node))


async def performed(order: Order) -> AsyncIterator[Outcome]:
    """What must not happen, and shows in the answer."""
    yield CheckpointFailed("", f"performed: {order}")
