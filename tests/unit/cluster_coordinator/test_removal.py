"""The objects of snapshots that retention has removed go, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.coordinator.objects import to_object
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.removal import Removal
from cedana_sched.kube.client import Api, Object
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import Checkpoint, CheckpointStep
from tests.unit.cluster_coordinator.fake_api_server import FakeApiServer
from tests.unit.cluster_coordinator.test_object_journal import SYSTEM, checkpoint


def _ready(generation: int) -> Checkpoint:
    ready = checkpoint(1, CheckpointStep.READY)
    snapshot = SnapshotRef(ready.identity, generation)
    return msgspec.structs.replace(ready, uid=f"generation-{generation}", snapshot=snapshot)


class _Server:
    """Has settled Checkpoints of one identity."""

    def __init__(self, *checkpoints: Checkpoint) -> None:
        self.objects = {body["metadata"]["name"]: body for body in (to_object(one, SYSTEM) for one in checkpoints)}
        self.deleted: asyncio.Queue[str] = asyncio.Queue()

    async def list_all(
        self, resource: Any, namespace: str, query: Mapping[str, str], *, into: type[Any]
    ) -> tuple[tuple[Any, ...], str]:
        assert namespace == "bio"
        assert query == {"labelSelector": f"{names.ID}=md,{names.INDEX}=1,{names.SETTLED}=true"}
        return tuple(msgspec.convert(body, into) for body in self.objects.values()), "1"

    async def delete(self, resource: Any, name: str, namespace: str, *, uid: str) -> None:
        self.deleted.put_nowait(name)


async def test_objects_of_removed_generations_go() -> None:
    server = _Server(_ready(1), _ready(2), _ready(3))
    removal = Removal(cast("Api", server))
    task = asyncio.create_task(removal.run())
    removal.removed([SnapshotRef(_ready(1).identity, 1), SnapshotRef(_ready(1).identity, 2)])
    gone = {await asyncio.wait_for(server.deleted.get(), 5) for _ in range(2)}
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    kept = to_object(_ready(3), SYSTEM)["metadata"]["name"]
    assert gone == set(server.objects) - {kept}


@pytest.mark.parametrize("is_removed", [True, False])
async def test_record_that_is_forgotten_takes_its_object_along_when_its_snapshot_is_gone(is_removed: bool) -> None:
    server = FakeApiServer()
    removal = Removal(cast("Api", server))
    projection = Projection(cast("Api", server), SYSTEM, removal.is_removed)
    task = asyncio.create_task(projection.run())
    ready = _ready(1)
    projection.write((ready,), ())
    if is_removed:
        removal._removed.add(cast("SnapshotRef", ready.snapshot))
    projection.write((), (ready,))
    removal.recorded((), (ready,))
    await projection.flushed()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    shown: list[Object] = list(server.objects.values())
    assert len(shown) == (0 if is_removed else 1)
    assert not removal._removed
