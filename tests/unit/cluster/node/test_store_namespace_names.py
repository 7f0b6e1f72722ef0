"""Snapshots belong to the very namespace in which they were taken, unless its name is shared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cedana_sched.agent.restore_orders import RestoreOrders
from cedana_sched.agent.staging import Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.coordinator.answer_validation import first_objection_to as objection_to_answer
from cedana_sched.cluster.node.order_validation import identities_of, with_namespace_uid
from cedana_sched.cluster.node.store_namespace_names import StoreNamespaceNames
from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import NAMESPACES, Resource
from cedana_sched.model import orders
from cedana_sched.model.identity import ALL_NAMESPACES, SnapshotRef
from cedana_sched.model.policy import Compression
from cedana_sched.model.records import Transfer
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take

from .order_objects import CHECKPOINT, IDENTITY, OF_CHECKPOINTS, OF_RESTORES, RESTORE, SNAPSHOT, WANTED, WORKLOAD

FIRST = "0a1b2c3d-0000-4000-8000-0000000000f1"
SECOND = "0a1b2c3d-0000-4000-8000-0000000000f2"
KEPT = replace(IDENTITY, namespace=f"tenant-a.{FIRST}")
FIND = orders.FindSnapshot(RESTORE, IDENTITY)
DUMP = orders.Dump(CHECKPOINT, WORKLOAD, IDENTITY, Compression.AUTO, "Preempted", "kueue", 60.0)


class Server:
    """Has the namespaces of a cluster, by their names."""

    def __init__(self) -> None:
        self.uids = {"tenant-a": FIRST}

    async def get(self, resource: Resource, name: str, *, into: Any) -> Any:
        assert (resource, into) == (NAMESPACES, PartialObject)
        if name not in self.uids:
            raise AbsentError("there is none", status=404, reason="NotFound")
        return PartialObject(Metadata(name=name, uid=self.uids[name], resource_version="1"))


class Cluster:
    """One cluster's agent, as far as it saves something in a store, and asks what is there."""

    def __init__(self, folder: Path, *shared: str) -> None:
        self.store = SnapshotStore(CountingBackend(folder / "store"))
        self.server = Server()
        self.returns = RestoreOrders(
            cast("Any", None), cast("Any", None), self.store, Staging(folder / "staged", "4.2.1"), StoreThreads()
        )
        self.kept = StoreNamespaceNames(cast("Any", self.server), self._perform, shared)

    async def _perform(self, order: orders.Order) -> AsyncIterator[orders.Outcome]:
        if isinstance(order, orders.Dump):
            ref = take(self.store, order.identity, {"core.img": b"memory"}).ref
            yield orders.Committed(order.checkpoint_uid, ref, Transfer())
        else:
            assert isinstance(order, orders.FindSnapshot)
            yield await self.returns.find(order)

    async def save(self) -> SnapshotRef:
        [committed] = [outcome async for outcome in self.kept.perform(DUMP)]
        assert isinstance(committed, orders.Committed)
        return committed.snapshot

    async def find(self) -> SnapshotRef | None:
        [found] = [outcome async for outcome in self.kept.perform(FIND)]
        assert isinstance(found, orders.SnapshotFound)
        return found.snapshot


async def test_a_namespace_finds_its_own(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert await cluster.save() == SnapshotRef(IDENTITY, 1)
    assert await cluster.find() == SnapshotRef(IDENTITY, 1)
    assert cluster.store.namespaces() == cluster.store.namespaces("tenant-a") == (f"tenant-a.{FIRST}",)


async def test_a_namespace_that_was_made_again_finds_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.save()
    cluster.server.uids["tenant-a"] = SECOND
    assert await cluster.find() is None


async def test_a_namespace_of_another_cluster_finds_nothing(tmp_path: Path) -> None:
    here, there = Cluster(tmp_path), Cluster(tmp_path)
    there.server.uids["tenant-a"] = SECOND
    await here.save()
    assert await there.find() is None


@pytest.mark.parametrize("shared", ["tenant-a", ALL_NAMESPACES])
async def test_a_shared_name_finds_what_any_namespace_of_that_name_has_left(tmp_path: Path, shared: str) -> None:
    here, there = Cluster(tmp_path, shared), Cluster(tmp_path, shared)
    there.server.uids["tenant-a"] = SECOND
    await here.save()
    assert await there.find() == SnapshotRef(IDENTITY, 1)


async def test_who_shares_a_name_and_who_does_not_find_nothing_of_each_other(tmp_path: Path) -> None:
    shares, others = Cluster(tmp_path, "tenant-a"), Cluster(tmp_path, "tenant-b", "tenant")
    await shares.save()
    assert await others.find() is None
    take(others.store, KEPT, {"core.img": b"memory"}, "another")
    take(others.store, KEPT, {"core.img": b"memory"}, "the next")
    assert await shares.find() == SnapshotRef(IDENTITY, 1)


async def test_nothing_is_done_in_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.save()
    del cluster.server.uids["tenant-a"]
    with pytest.raises(AbsentError):
        await cluster.find()


@pytest.mark.parametrize("order", [*OF_CHECKPOINTS, *OF_RESTORES], ids=lambda order: type(order).__name__)
async def test_no_order_names_a_snapshot_by_the_name_alone(order: orders.Order) -> None:
    performed = list[orders.Order]()

    async def perform(told: orders.Order) -> AsyncIterator[orders.Outcome]:
        performed.append(told)
        yield orders.Killed(CHECKPOINT)

    [_] = [outcome async for outcome in StoreNamespaceNames(cast("Any", Server()), perform, ()).perform(order)]
    [told] = performed
    named = repr(told).count("Identity(namespace='tenant-a',")
    assert named == 0
    kept = repr(told).replace(f"Identity(namespace='tenant-a.{FIRST}'", "Identity(namespace='tenant-a'")
    assert kept == repr(order), "nothing else is changed"


@pytest.mark.parametrize("order", [*OF_CHECKPOINTS, *OF_RESTORES], ids=lambda order: type(order).__name__)
@pytest.mark.parametrize(("given", "is_obeyed"), [(FIRST, True), ("", True), (SECOND, False)])
async def test_no_order_of_another_namespace_of_the_name_is_obeyed(
    order: orders.Order, given: str, is_obeyed: bool
) -> None:
    """What is about no snapshot names its pod by the uid, which no other one has. Empty: an older version gave it."""
    performed = list[orders.Order]()

    async def perform(told: orders.Order) -> AsyncIterator[orders.Outcome]:
        performed.append(told)
        yield orders.Killed(CHECKPOINT)

    kept = StoreNamespaceNames(cast("Any", Server()), perform, ())
    [outcome] = [one async for one in kept.perform(with_namespace_uid(order, given))]
    if is_obeyed or not identities_of(order):
        assert len(performed) == 1
        return
    assert performed == []
    assert objection_to_answer(outcome, order) is None, "the coordinator takes it for an answer"
    assert f"it is of namespace tenant-a with uid {SECOND}, and the one of that name is another one now" in repr(
        outcome
    )


async def test_of_a_shared_name_orders_of_all_namespaces_are_obeyed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "tenant-a")
    await cluster.save()
    [found] = [one async for one in cluster.kept.perform(with_namespace_uid(FIND, SECOND))]
    assert found == orders.SnapshotFound(RESTORE, SnapshotRef(IDENTITY, 1))


async def test_a_snapshot_stays_when_the_namespace_before_has_it_removed(tmp_path: Path) -> None:
    store = SnapshotStore(CountingBackend(tmp_path / "store"))
    taken = take(store, KEPT, {"core.img": b"memory"})

    async def perform(told: orders.Order) -> AsyncIterator[orders.Outcome]:
        assert isinstance(told, orders.RemoveSnapshot)
        store.remove(told.snapshot)
        yield orders.SnapshotRemoved(told.checkpoint_uid)

    remove = orders.RemoveSnapshot(CHECKPOINT, SnapshotRef(IDENTITY, 1))
    kept = StoreNamespaceNames(cast("Any", Server()), perform, ())
    [outcome] = [one async for one in kept.perform(with_namespace_uid(remove, SECOND))]
    assert isinstance(outcome, orders.RemovalFailed)
    assert store.find_committed(KEPT, taken.summary.checkpoint_uid) is not None
    [outcome] = [one async for one in kept.perform(with_namespace_uid(remove, FIRST))]
    assert isinstance(outcome, orders.SnapshotRemoved)
    assert store.find_committed(KEPT, taken.summary.checkpoint_uid) is None


OUTCOMES: list[orders.Outcome] = [
    orders.Committed(CHECKPOINT, SNAPSHOT, Transfer(), WANTED),
    orders.SnapshotFound(RESTORE, SNAPSHOT),
    orders.RetentionApplied(CHECKPOINT, (SNAPSHOT, WANTED)),
    orders.Progress(CHECKPOINT, Transfer(1, 2, 3, 4)),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
async def test_outcomes_name_what_the_coordinator_knows(outcome: orders.Outcome) -> None:
    kept: Any = repr(outcome)

    async def perform(order: orders.Order) -> AsyncIterator[orders.Outcome]:
        yield renamed(outcome)

    [said] = [one async for one in StoreNamespaceNames(cast("Any", Server()), perform, ()).perform(FIND)]
    assert repr(said) == kept


def renamed(outcome: orders.Outcome) -> orders.Outcome:
    """As the store names it."""

    def kept(ref: SnapshotRef) -> SnapshotRef:
        return replace(ref, identity=replace(ref.identity, namespace=KEPT.namespace))

    match outcome:
        case orders.Committed():
            return replace(outcome, snapshot=kept(outcome.snapshot), leaves=kept(WANTED))
        case orders.SnapshotFound():
            return replace(outcome, snapshot=kept(SNAPSHOT))
        case orders.RetentionApplied():
            return replace(outcome, removed=tuple(map(kept, outcome.removed)))
        case _:
            return outcome
