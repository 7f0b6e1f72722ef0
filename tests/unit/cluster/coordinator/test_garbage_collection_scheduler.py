"""Whose turn it is to collect: namespaces that no agent can collect, a few at once, and none of anybody else's."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.collection_turns import KEY, TURN_SECONDS, CollectionTurn, CollectionTurns
from cedana_sched.cluster.coordinator import garbage_collection_scheduler
from cedana_sched.cluster.coordinator.garbage_collection_scheduler import (
    BUSY_SECONDS,
    MOST_TURNS,
    GarbageCollectionScheduler,
)
from cedana_sched.kube.builtin_kinds import (
    Condition,
    Metadata,
    Node,
    NodeStatus,
    PartialObject,
    Pod,
    PodSpec,
    PodStatus,
)
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CONFIG_MAPS, NAMESPACES, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.store import layout
from cedana_sched.store.garbage_detection import IDLE_SECONDS, SECOND_RUN_SECONDS
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take
from tests.unit.cluster.coordinator.filled_mirrors import filled

UID, OLDER = "7c9e6679-7425-40de-944b-e07fc1f90ae7", "00000000-7425-40de-944b-e07fc1f90ae7"
IDLE, BEFORE = f"research.{UID}", f"research.{OLDER}"
NAME, OURS = "cedana-sched-collections", "ours"


def node(name: str, *, has_agent: bool = True, ready: bool = True) -> Node:
    labels = {names.NODE_PREPARED: "true"} if has_agent else {}
    condition = Condition("Ready", "True" if ready else "Unknown")
    return Node(Metadata(name, labels=labels), status=NodeStatus((condition,)))


def pod(namespace: str, on: str = "node-1", phase: str = "Running") -> Pod:
    return Pod(Metadata("worker", namespace), PodSpec(on), PodStatus(phase))


class Cluster:
    """A bucket, an API server that has the ConfigMap, and a coordinator that leads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = CountingBackend(folder)
        self.namespaces = {"research": UID}
        self.nodes = [node("node-1"), node("node-2")]
        self.pods: list[Pod] = []
        self.checkpoints: list[KnownCheckpoint] = []
        self.data: dict[str, str] = {}
        self.problem: Exception | None = None
        self.own_node = ""
        self.shared: tuple[str, ...] = ()
        self.time = 0.0

    def saved(self, *namespaces: str) -> None:
        for namespace in namespaces:
            take(SnapshotStore(CountingBackend(self.folder)), Identity(namespace, "md"), {"core.img": b"x"})

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Object) -> None:
        assert (resource, name, namespace) == (CONFIG_MAPS, NAME, OURS)
        if self.problem is not None:
            raise self.problem
        self.data |= patch["data"]

    async def find(self, resource: Resource, name: str, *, into: type[Any]) -> Any:
        assert resource is NAMESPACES
        uid = self.namespaces.get(name)
        return PartialObject(Metadata(name, uid=uid)) if uid is not None else None

    def leader(self) -> GarbageCollectionScheduler:
        return GarbageCollectionScheduler(
            cast("Api", self),
            lambda: self.bucket,
            NAME,
            OURS,
            filled(*self.nodes),
            filled(*self.pods),
            filled(*self.checkpoints),
            shared=self.shared,
            own_node=self.own_node,
            clock=lambda: self.time,
        )

    def turns(self) -> tuple[CollectionTurn, ...]:
        return CollectionTurns(Metadata(NAME), self.data).unexpired_turns(0)

    def look(self) -> set[str]:
        """What a coordinator that has just begun to lead has collected."""
        asyncio.run(self.leader().run_round())
        return {one.namespace for one in self.turns()}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_namespace_of_which_no_pod_is_anywhere_is_collected(cluster: Cluster) -> None:
    cluster.saved(IDLE)
    assert cluster.look() == {IDLE}
    assert {one.node for one in cluster.turns()} <= {"node-1", "node-2"}


def test_a_namespace_that_was_deleted_is_collected(cluster: Cluster) -> None:
    cluster.saved(IDLE)
    cluster.namespaces.clear()
    assert cluster.look() == {IDLE}


@pytest.mark.parametrize(
    ("theirs", "is_idle"),
    [
        (pod("research"), False),
        (pod("finance"), True),
        (pod("research", on=""), True),
        (pod("research", phase="Succeeded"), True),
    ],
)
def test_agents_collect_what_has_pods_on_nodes(cluster: Cluster, theirs: Pod, is_idle: bool) -> None:
    cluster.saved(IDLE)
    cluster.pods = [theirs]
    assert cluster.look() == ({IDLE} if is_idle else set())


def test_the_pods_of_a_namespace_made_again_are_not_those_of_the_older_one(cluster: Cluster) -> None:
    cluster.saved(IDLE, BEFORE, "research")
    cluster.pods = [pod("research")]
    assert cluster.look() == {BEFORE, "research"}


def test_a_shared_namespace_is_its_name(cluster: Cluster) -> None:
    cluster.saved(IDLE, "research")
    cluster.pods, cluster.shared = [pod("research")], ("research",)
    assert cluster.look() == {IDLE}


def test_our_own_node_collects_where_it_has_an_agent(cluster: Cluster) -> None:
    cluster.saved(*(f"n{number}.{UID}" for number in range(4)))
    cluster.own_node = "node-2"
    cluster.look()
    assert {one.node for one in cluster.turns()} == {"node-2"}
    cluster.nodes = [node("node-1"), node("node-2", has_agent=False)]
    cluster.look()
    assert {one.node for one in cluster.turns()} == {"node-1"}


@pytest.mark.parametrize("nodes", [[], [node("a", has_agent=False)], [node("a", ready=False)]])
def test_where_no_agent_is_nobody_asks_the_bucket(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.saved(IDLE)
    cluster.nodes = nodes
    assert cluster.look() == set()
    assert not cluster.bucket.requests


def test_few_turns_stand_at_once_and_each_namespace_has_its_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.saved(*(f"n{number}.{UID}" for number in range(2 * MOST_TURNS)))
    leader = cluster.leader()
    for _ in range(3):
        asyncio.run(leader.run_round())
    first = {one.namespace for one in cluster.turns()}
    assert len(first) == MOST_TURNS
    later = SERVER_TIME.seconds() + TURN_SECONDS
    monkeypatch.setattr(SERVER_TIME, "seconds", lambda: later)
    asyncio.run(leader.run_round())
    second = {one.namespace for one in cluster.turns()}
    assert len(second) == MOST_TURNS
    assert not first & second


def test_a_round_is_bounded_and_no_namespace_is_looked_at_again_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection_scheduler, "LOOKS_A_ROUND", 3)
    for number in range(7):
        cluster.bucket.put(f"{layout.ROOT}/n{number}.{UID}/references", b"")
    leader = cluster.leader()
    listed = []
    for _ in range(4):
        cluster.bucket.forget()
        asyncio.run(leader.run_round())
        listed.append(cluster.bucket.requests["list"])
    assert listed == [3 * 3, 3 * 3, 3, 0], "three folders of each"
    cluster.time += IDLE_SECONDS
    cluster.bucket.forget()
    asyncio.run(leader.run_round())
    assert cluster.bucket.requests["list"] == 3 * 3


def test_what_becomes_idle_is_found(cluster: Cluster) -> None:
    cluster.saved(IDLE)
    informer = filled(pod("research"))
    leader = cluster.leader()
    leader._pods = informer
    asyncio.run(leader.run_round())
    informer._replace(())
    asyncio.run(leader.run_round())
    assert not cluster.turns()
    cluster.time += BUSY_SECONDS
    asyncio.run(leader.run_round())
    assert len(cluster.turns()) == 1


class Days:
    """A leader that looks each half an hour; a day, unless it is told otherwise."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.leader = cluster.leader()
        self.server_time = SERVER_TIME.seconds()
        monkeypatch.setattr(SERVER_TIME, "seconds", lambda: self.server_time)

    async def turns(self, before_each: Callable[[int], object] = lambda _: None, days: int = 1) -> int:
        given = 0
        for number in range(days * 48):
            before_each(number)
            self.cluster.data.clear()
            await self.leader.run_round()
            given += bool(self.cluster.data)
            self.cluster.time += 1800
            self.server_time += 1800
        return given


@pytest.fixture
def days(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(cluster, monkeypatch)


def condemn(cluster: Cluster, collected: bool = True) -> None:
    """As it looks in the middle of a collection's two runs, as long ago as they are apart."""
    for key in [f"{layout.condemned_folder(IDLE)}/x", *([layout.collector_key(IDLE)] if collected else [])]:
        cluster.bucket.put(key, b"")
        moment = time.time() - SECOND_RUN_SECONDS - 60
        os.utime(cluster.folder / key, (moment, moment))


async def test_turns_that_change_nothing_become_rare(cluster: Cluster, days: Days) -> None:
    """No key of ours opens what is another cluster's: its manifests are read in vain each time."""
    cluster.saved(IDLE)
    assert 7 <= await days.turns(days=2) <= 9


async def test_turns_after_which_something_is_condemned_again_become_rare(cluster: Cluster, days: Days) -> None:
    """By whoever may write there, so that his namespaces have all the turns."""
    cluster.saved(IDLE)
    assert 5 <= await days.turns(lambda _: condemn(cluster)) <= 8
    assert await days.turns(lambda _: condemn(cluster), days=4) <= 4


async def test_who_removes_all_and_lays_it_anew_has_no_more_turns(cluster: Cluster, days: Days) -> None:
    folder = cluster.folder / layout.namespace_folder(IDLE)

    def come_and_go(number: int) -> None:
        if number % 2:
            shutil.rmtree(folder)
        else:
            (folder / "packs").mkdir(parents=True)
            (folder / "packs" / "x-1").touch()

    assert await days.turns(come_and_go, days=3) <= 3


async def test_what_was_collected_to_its_end_has_two_turns_soon_when_there_is_more(
    cluster: Cluster, days: Days
) -> None:
    cluster.saved(IDLE)
    await days.turns(lambda _: condemn(cluster))
    cluster.bucket.delete([f"{layout.condemned_folder(IDLE)}/x"])
    cluster.bucket.put(layout.collector_key(IDLE), b"")
    assert await days.turns(days=2) == 0, "nothing of it is left"
    cluster.bucket.delete([layout.collector_key(IDLE)])
    given = await days.turns(lambda number: condemn(cluster) if number < 2 else None)
    assert given >= 2


def known(namespace: str, uid: str, *, saved: bool = True) -> KnownCheckpoint:
    snapshot = {"snapshot": {"generation": 1, "id": "md"}} if saved else {}
    spec = {"identity": {"id": "md"}, "namespaceUID": uid}
    shown = {"metadata": {"name": "md", "namespace": namespace}, "spec": spec, "status": snapshot}
    return msgspec.convert(shown, KnownCheckpoint)


@pytest.mark.parametrize(
    ("one", "is_collected"),
    [
        (known("research", UID), False),
        (known("research", ""), False),
        (known("research", OLDER), True),
        (known("finance", UID), True),
        (known("research", UID, saved=False), True),
    ],
)
@pytest.mark.parametrize("own_node", ["node-2", "elsewhere"])
def test_any_node_has_no_right_to_remove_what_somebody_may_come_back_to(
    cluster: Cluster, one: KnownCheckpoint, is_collected: bool, own_node: str
) -> None:
    """Its pods are evicted and wait in a queue, so that no agent has to do with the namespace."""
    cluster.saved(IDLE)
    cluster.checkpoints, cluster.own_node = [one], own_node
    assert cluster.look() == ({IDLE} if is_collected or own_node == "node-2" else set())


def test_foreign_folders_are_left_alone(cluster: Cluster) -> None:
    cluster.saved(IDLE)
    for name in ("-x", "a b", f"{'x' * 80}"):
        cluster.bucket.put(f"{layout.ROOT}/{name}/packs/a-1", b"")
    assert cluster.look() == {IDLE}


def test_a_turn_that_could_not_be_written_is_given_later(cluster: Cluster) -> None:
    cluster.saved(IDLE)
    cluster.problem = ApiUnavailableError("no answer")
    leader = cluster.leader()
    with pytest.raises(ApiUnavailableError):
        asyncio.run(leader.run_round())
    cluster.problem = None
    cluster.time += TURN_SECONDS
    asyncio.run(leader.run_round())
    assert len(cluster.turns()) == 1


@pytest.mark.parametrize("problem", [ApiUnavailableError("no answer"), RuntimeError("a defect")])
async def test_nothing_that_a_round_meets_ends_the_coordinator(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    monkeypatch.setattr(garbage_collection_scheduler, "ROUND_SECONDS", 0.0)
    cluster.saved(IDLE)
    looks = 0
    leader = cluster.leader()

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise problem

    monkeypatch.setattr(leader, "run_round", look)
    running = asyncio.create_task(leader.run())
    async with asyncio.timeout(60):
        while looks < 3:  # noqa: ASYNC110  # each turn is progress
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("text", ["", "x", "{}", '[{"node":"a","namespace":"../x","until":9e9}]', "[1]"])
def test_what_stands_there_and_cannot_be_read_is_nobodys_turn(text: str) -> None:
    assert CollectionTurns(Metadata(NAME), {KEY: text}).unexpired_turns(0) == ()
    assert msgspec.convert({"metadata": {"name": NAME}}, CollectionTurns).unexpired_turns(0) == ()
