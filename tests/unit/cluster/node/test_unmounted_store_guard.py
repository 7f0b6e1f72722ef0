"""A node on which the store is not mounted saves nothing into the empty folder, unless nothing was ever saved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.node.unmounted_store_guard import UnmountedStoreGuard
from cedana_sched.kube.resources import CHECKPOINTS, Resource
from cedana_sched.model import orders
from cedana_sched.model.policy import Compression
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig

from .order_objects import CHECKPOINT, IDENTITY, OF_CHECKPOINTS, OF_RESTORES, WORKLOAD

DUMP = orders.Dump(CHECKPOINT, WORKLOAD, IDENTITY, Compression.AUTO, "Preempted", "kueue", 60.0)
SAVED = {"metadata": {"name": "md"}, "status": {"phase": "Ready", "snapshot": {"id": "md", "generation": 7}}}
FAILED: dict[str, Any] = {"metadata": {"name": "md"}, "status": {"phase": "Failed", "snapshot": None}}
NEW: dict[str, Any] = {"metadata": {"name": "md"}}


class Server:
    """Has the Checkpoints of a cluster."""

    def __init__(self, *checkpoints: dict[str, Any]) -> None:
        self.checkpoints = checkpoints
        self.asked = 0

    async def list_all(self, resource: Resource, *, into: Any) -> Any:
        assert resource == CHECKPOINTS
        self.asked += 1
        return tuple(msgspec.json.decode(msgspec.json.encode(one), type=into) for one in self.checkpoints), "1"


async def performed(server: Server, folder: Path | None, order: orders.Order = DUMP) -> orders.Outcome:
    async def perform(order: orders.Order) -> AsyncIterator[orders.Outcome]:
        yield orders.Killed(CHECKPOINT)

    beginnings = UnmountedStoreGuard(cast("Any", server), perform, folder)
    [outcome] = [outcome async for outcome in beginnings.perform(order)]
    return outcome


async def test_nothing_is_saved_where_the_store_is_away(tmp_path: Path) -> None:
    said = await performed(Server(NEW, FAILED, SAVED), tmp_path)
    assert isinstance(said, orders.CheckpointFailed)
    assert said.retryable, "it may be mounted in a moment"
    assert f"the store at {tmp_path} is not mounted on this node" in said.why


@pytest.mark.parametrize("checkpoints", [(), (NEW,), (FAILED, NEW)])
async def test_the_first_of_a_cluster_is_saved(tmp_path: Path, checkpoints: tuple[dict[str, Any], ...]) -> None:
    assert await performed(Server(*checkpoints), tmp_path) == orders.Killed(CHECKPOINT)


async def test_a_store_that_is_there_costs_no_question(tmp_path: Path) -> None:
    server = Server(SAVED)
    SnapshotStore.open(StorageConfig(path=tmp_path)).check_storage()
    assert await performed(server, tmp_path) == orders.Killed(CHECKPOINT)
    assert server.asked == 0


async def test_a_bucket_is_never_away_like_that() -> None:
    assert await performed(Server(SAVED), None) == orders.Killed(CHECKPOINT)


@pytest.mark.parametrize("order", [*OF_CHECKPOINTS, *OF_RESTORES], ids=lambda order: type(order).__name__)
async def test_other_orders_begin_no_store(tmp_path: Path, order: orders.Order) -> None:
    if not isinstance(order, orders.Dump):
        assert await performed(Server(SAVED), tmp_path, order) == orders.Killed(CHECKPOINT)
