"""A record counts in the very namespace for which it was made, and in no other one that has its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator import namespace_uid_check
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.checkpoints_in_use import CheckpointsInUse
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.namespace_uid_check import NamespaceUidCheck
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import to_object, to_record
from cedana_sched.cluster.coordinator.retention_cleanup import RetentionCleanup
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import NamespaceGoneError, RefusedByServerError
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, NAMESPACES, PODS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, Record, Restore, RestoreStep
from cedana_sched.testing import FakeApi
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.deletion_server import DeletionServer
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import READY, SYSTEM, checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD, RESTORE

BEFORE = "0a1b2c3d-0000-4000-8000-0000000000f1"
NOW = "0a1b2c3d-0000-4000-8000-0000000000f2"


@pytest.fixture
def _always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a namespace is made again within no time."""
    monkeypatch.setattr(namespace_uid_check, "CURRENT_SECONDS", 0.0)


def of(record: Record, uid: str) -> Any:
    if isinstance(record, Checkpoint | Restore):
        return replace(record, workload=replace(record.workload, namespace_uid=uid))
    return replace(record, namespace_uid=uid)


RECORDS = [READY, checkpoint(2, CheckpointStep.FREEZING), HOLD, RESTORE]
KINDS = {"Checkpoint": CHECKPOINTS, "PreemptionHold": PREEMPTION_HOLDS, "Restore": RESTORES}


class Server(FakeApi):
    """Has, or has not, a namespace of the records' name."""

    def __init__(self, uid: str | None) -> None:
        super().__init__()
        self.has(uid)

    def has(self, uid: str | None) -> None:
        for resource, namespace, name in tuple(self.objects):
            if resource == NAMESPACES or namespace == "bio":
                self.remove(resource, name, namespace)
        if uid is not None:
            self.objects[NAMESPACES, "", "bio"] = {"metadata": {"name": "bio", "uid": uid, "resourceVersion": "1"}}

    def shown(self) -> set[str]:
        return {one["spec"]["uid"] for (_, namespace, _), one in self.objects.items() if namespace == "bio"}


@asynccontextmanager
async def writing(server: FakeApi) -> AsyncIterator[Projection]:
    projection = Projection(server, SYSTEM)
    task = asyncio.create_task(projection.run())
    try:
        async with asyncio.timeout(60):
            yield projection
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("record", RECORDS)
def test_an_object_says_of_which_namespace_it_is(record: Record) -> None:
    mine = of(record, NOW)
    body = to_object(mine, SYSTEM)
    assert body["spec"]["namespaceUID"] == NOW
    assert to_record(KINDS[type(record).__name__], body) == mine
    assert "namespaceUID" not in to_object(record, SYSTEM)["spec"], "an older version wrote it so"


@pytest.mark.usefixtures("_always_looking")
@pytest.mark.parametrize("record", RECORDS)
async def test_an_object_that_went_with_its_namespace_is_not_made_in_the_next_one(record: Record) -> None:
    server, mine = Server(BEFORE), of(record, BEFORE)
    async with writing(server) as projection:
        projection.write((mine,), ())
        await projection.wait_flushed()
        assert server.shown() == {record.uid}
        server.has(NOW)
        projection.on_labels_seen(record.uid, None)
        projection.write((mine,), ())
        await projection.wait_flushed()
        projection.write((mine,), ())  # nor later
        await projection.wait_flushed()
        assert server.shown() == set()


@pytest.mark.usefixtures("_always_looking")
@pytest.mark.parametrize(("uid", "is_shown"), [("", True), ("another", False)])
async def test_a_pod_that_is_there_is_of_this_namespace_whatever_a_webhook_took_it_for(
    uid: str, is_shown: bool
) -> None:
    """Its webhook's watch was behind. Else nobody could be told to save it, and its eviction would wait for nothing."""
    saved = of(checkpoint(2, CheckpointStep.FREEZING), BEFORE)
    hold = replace(of(HOLD, BEFORE), checkpoints=(saved.uid,))
    server = Server(NOW)
    pod = {"name": saved.workload.name, "uid": uid or saved.workload.uid, "resourceVersion": "1"}
    server.objects[PODS, "bio", saved.workload.name] = {"metadata": {**pod, "namespace": "bio"}, "spec": {"uid": "-"}}
    async with writing(server) as projection:
        projection.write((saved, hold), ())
        await projection.wait_flushed()
    assert server.shown() - {"-"} == ({saved.uid, hold.uid} if is_shown else set())
    shown = [one for (resource, _, _), one in server.objects.items() if resource in KINDS.values()]
    assert all(one["spec"]["namespaceUID"] == NOW for one in shown)


@pytest.mark.usefixtures("_always_looking")
async def test_a_victim_in_another_namespace_says_nothing_of_the_holds_own() -> None:
    gone, there = of(checkpoint(2, CheckpointStep.FREEZING), BEFORE), checkpoint(3, CheckpointStep.FREEZING)
    elsewhere = replace(there, workload=replace(there.workload, namespace="chem"))
    hold = replace(of(HOLD, BEFORE), checkpoints=(gone.uid, elsewhere.uid))
    server = Server(NOW)
    name, uid = elsewhere.workload.name, elsewhere.workload.uid
    pod = {"name": name, "namespace": "chem", "uid": uid, "resourceVersion": "1"}
    server.objects[PODS, "chem", name] = {"metadata": pod, "spec": {"uid": "-"}}
    async with writing(server) as projection:
        projection.write((gone, elsewhere, hold), ())
        await projection.wait_flushed()
    assert server.shown() == set()


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("uid", [BEFORE, ""])
async def test_an_object_that_somebody_deleted_in_its_own_namespace_is_made_again(record: Record, uid: str) -> None:
    """Empty: a record of an older version."""
    server, mine = Server(BEFORE), of(record, uid)
    async with writing(server) as projection:
        projection.write((mine,), ())
        await projection.wait_flushed()
        server.has(BEFORE)
        projection.on_labels_seen(record.uid, None)
        projection.write((mine,), ())
        await projection.wait_flushed()
        assert server.shown() == {record.uid}


@pytest.mark.usefixtures("_always_looking")
async def test_a_write_that_was_refused_until_its_namespace_was_another_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_pauses(monkeypatch)
    server = Server(BEFORE)
    create, refused = server.create, asyncio.Event()

    async def refusing(*given: Any, **named: Any) -> Any:
        if not refused.is_set():
            refused.set()
            server.has(NOW)
            raise RefusedByServerError("forbidden", status=403)
        return await create(*given, **named)

    monkeypatch.setattr(server, "create", refusing)
    async with writing(server) as projection:
        projection.write((of(READY, BEFORE),), ())
        await projection.wait_flushed()
    assert refused.is_set()
    assert server.shown() == set()


@pytest.mark.parametrize(
    ("noted", "is_now", "is_made"), [(BEFORE, NOW, False), (BEFORE, None, False), (NOW, NOW, True), ("", NOW, True)]
)
async def test_the_journal_makes_no_object_of_the_namespace_before(
    noted: str, is_now: str | None, is_made: bool
) -> None:
    server, mine = Server(noted or NOW), of(checkpoint(1, CheckpointStep.FREEZING), noted)
    dead = ObjectJournal(server, SYSTEM, "dead", Projection(server, SYSTEM))
    await dead.load()
    await dead.save((mine,), ())  # and dies before it has written the object
    server.has(is_now)
    async with writing(server) as projection:
        assert await ObjectJournal(server, SYSTEM, "next", projection).load() == (mine,)
        await projection.wait_flushed()
    assert server.shown() == ({mine.uid} if is_made else set())


async def test_what_an_object_has_corrected_the_log_does_not_undo() -> None:
    server, mine = Server(NOW), of(checkpoint(1, CheckpointStep.FREEZING), BEFORE)
    pod = {"name": mine.workload.name, "namespace": "bio", "uid": mine.workload.uid, "resourceVersion": "1"}
    server.objects[PODS, "bio", mine.workload.name] = {"metadata": pod, "spec": {"uid": "-"}}
    async with writing(server) as projection:
        dead = ObjectJournal(server, SYSTEM, "dead", projection)
        await dead.load()
        await dead.save((mine,), ())
        await projection.wait_flushed()
    async with writing(server) as projection:
        assert await ObjectJournal(server, SYSTEM, "next", projection).load() == (of(mine, NOW),)
        assert projection.pending_records().records == (of(mine, NOW),)


async def test_an_adapter_that_repeats_an_old_preemption_makes_no_object_in_the_next_namespace() -> None:
    server = Server(NOW)
    async with writing(server) as projection:
        projection.write((of(checkpoint(1, CheckpointStep.WAITING), BEFORE),), ())
        await projection.wait_flushed()
    assert server.shown() == set()


async def test_many_records_of_one_namespace_cost_one_look_at_it() -> None:
    now = 0.0
    server = Server(NOW)
    namespaces = NamespaceUidCheck(server, clock=lambda: now)
    for _ in range(3):
        await namespaces.require_current_uid("bio", NOW)
        await namespaces.require_current_uid("bio", "")
        with pytest.raises(NamespaceGoneError):
            await namespaces.require_current_uid("bio", BEFORE)
    assert server.traffic.requests == 1 + 3
    now = 2.0
    server.has(BEFORE)
    with pytest.raises(NamespaceGoneError):
        await namespaces.require_current_uid("bio", NOW)
    await namespaces.require_current_uid("bio", BEFORE)


def _known(server: DeletionServer, record: Checkpoint) -> KnownCheckpoint:
    body = server.objects[server.add(record)]
    return msgspec.convert({**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}, KnownCheckpoint)


@pytest.mark.parametrize(("noted", "is_gone"), [(BEFORE, False), (NOW, True), ("", True)])
def test_what_retention_removed_in_the_namespace_before_is_still_there_in_the_next(noted: str, is_gone: bool) -> None:
    informer = filled()
    removal = RetentionCleanup(cast("Api", None), informer, CheckpointsBySnapshot(informer))
    snapshot = cast("SnapshotRef", READY.snapshot)
    removal.on_snapshots_removed([snapshot], noted)
    assert removal.is_snapshot_removed(snapshot, NOW) == removal.has_removed_snapshot(of(READY, NOW)) == is_gone


@pytest.mark.parametrize(("noted", "is_needed"), [(BEFORE, False), (NOW, True), ("", True)])
async def test_a_return_in_the_namespace_before_keeps_no_snapshot_of_the_next(noted: str, is_needed: bool) -> None:
    in_use = CheckpointsInUse()
    fetching = replace(of(RESTORE, noted), step=RestoreStep.STAGING, snapshot=READY.snapshot)
    in_use.on_records_saved((fetching,), ())
    assert in_use.is_needed(_known(DeletionServer(), of(READY, NOW))) == is_needed
