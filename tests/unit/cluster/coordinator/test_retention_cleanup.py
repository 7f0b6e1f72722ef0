"""The objects of snapshots that retention has removed go, and no others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.retention_cleanup import RetentionCleanup
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import RefusedByServerError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import Checkpoint, CheckpointStep
from cedana_sched.testing import FakeApi, Key
from tests.unit.cluster.coordinator.deletion_server import DeletionServer
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint


def _ready(generation: int) -> Checkpoint:
    ready = checkpoint(1, CheckpointStep.READY)
    snapshot = SnapshotRef(ready.identity, generation)
    return msgspec.structs.replace(ready, uid=f"generation-{generation}", snapshot=snapshot)


async def _until_deleted(server: DeletionServer, keys: set[Key]) -> None:
    async with asyncio.timeout(60):
        while any("deletionTimestamp" not in server.objects[key]["metadata"] for key in keys):
            server.moved.clear()
            await server.moved.wait()


def _is_deleted(server: DeletionServer, key: Key) -> bool:
    return "deletionTimestamp" in server.objects[key]["metadata"]


async def test_objects_of_removed_generations_go_and_those_that_are_records_still_when_they_are_forgotten() -> None:
    server = DeletionServer()
    first, kept = server.add(_ready(1)), server.add(_ready(3))
    remembered = server.add(_ready(2), labels={names.NODE: "node-1"})
    by_snapshot = CheckpointsBySnapshot(server.checkpoints)
    removal = RetentionCleanup(server, server.checkpoints, by_snapshot)
    seen: asyncio.Queue[object] = asyncio.Queue()
    server.checkpoints.subscribe(lambda *change: seen.put_nowait(change))
    running = [asyncio.create_task(one) for one in (server.checkpoints.run(), removal.run())]
    for _ in range(3):
        await asyncio.wait_for(seen.get(), 60)
    removal.on_snapshots_removed([SnapshotRef(_ready(1).identity, 1), SnapshotRef(_ready(1).identity, 2)], "")
    await _until_deleted(server, {first})
    assert not _is_deleted(server, remembered)
    assert removal.has_removed_snapshot(_ready(2))
    server.objects[remembered]["metadata"]["labels"][names.ARCHIVED] = "true"
    server.tell(remembered)
    await _until_deleted(server, {remembered})
    assert not _is_deleted(server, kept)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("is_removed", [True, False])
async def test_record_that_is_forgotten_takes_its_object_along_when_its_snapshot_is_gone(is_removed: bool) -> None:
    server = FakeApi()
    removal = RetentionCleanup(server, checkpoints := filled(), CheckpointsBySnapshot(checkpoints))
    projection = Projection(server, SYSTEM, removal.has_removed_snapshot)
    task = asyncio.create_task(projection.run())
    ready = _ready(1)
    projection.write((ready,), ())
    if is_removed:
        removal.on_snapshots_removed([cast("SnapshotRef", ready.snapshot)], "")
    projection.write((), (ready,))
    await projection.wait_flushed()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    shown: list[Object] = list(server.objects.values())
    assert len(shown) == (0 if is_removed else 1)


async def test_refused_removal_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = DeletionServer()
    key = server.add(_ready(1))
    removal = RetentionCleanup(server, server.checkpoints, CheckpointsBySnapshot(server.checkpoints))
    refusals: list[Exception | None] = [RefusedByServerError("forbidden", status=403), None]
    delete = server.delete

    async def refusing(*given: Any, **named: Any) -> None:
        if (refusal := refusals.pop(0) if refusals else None) is not None:
            raise refusal
        await delete(*given, **named)

    monkeypatch.setattr(server, "delete", refusing)
    running = [asyncio.create_task(one) for one in (server.checkpoints.run(), removal.run())]
    removal.on_snapshots_removed([SnapshotRef(_ready(1).identity, 1)], "")
    await _until_deleted(server, {key})
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
