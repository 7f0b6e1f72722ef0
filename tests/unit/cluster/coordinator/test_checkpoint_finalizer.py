"""Whose Checkpoint is deleted, his snapshot goes from the store; nobody else's does, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import cast

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator import checkpoint_finalizer as module
from cedana_sched.cluster.coordinator.checkpoint_finalizer import CheckpointFinalizer
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.checkpoints_in_use import CheckpointsInUse
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import DiscardCancelled, Outcome, RemovalFailed, RemoveSnapshot, SnapshotRemoved
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, RestoreStep
from cedana_sched.testing import Key
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.deletion_server import SYSTEM, DeletionServer
from tests.unit.cluster.coordinator.test_object_journal import checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD, RESTORE

READY = checkpoint(1, CheckpointStep.READY)
REF = cast("SnapshotRef", READY.snapshot)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)


class Coordinator:
    """One that leads, as far as deletions go."""

    def __init__(self, server: DeletionServer) -> None:
        self.server = server
        self.in_use = CheckpointsInUse()
        self.let_go: list[str] = []
        self.workload_gone: set[SnapshotRef] = set()
        self.told: list[ObjectEvent] = []
        self.purge = CheckpointFinalizer(
            server,
            server.checkpoints,
            CheckpointsBySnapshot(server.checkpoints),
            server.nodes,
            self.in_use,
            stop_writing=self.let_go.append,
            is_gone=lambda ref, _: ref in self.workload_gone,
            events=cast("EventRecorder", self),
        )

    def record_event(self, event: ObjectEvent) -> None:
        self.told.append(event)

    async def delete(self, *keys: Key) -> None:
        for _, namespace, name in keys:
            await self.server.delete(CHECKPOINTS, name, namespace)

    async def until_gone(self, *keys: Key) -> None:
        await self.until(lambda: not set(keys) & self.server.objects.keys())

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.server.moved.clear()
                await self.server.moved.wait()

    async def rest(self) -> None:
        """Let everything happen that can."""
        for _ in range(60):
            await asyncio.sleep(0)


@asynccontextmanager
async def leading(server: DeletionServer, *, loaded: bool = True) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(server)
    if loaded:
        coordinator.in_use.on_records_saved((), ())
    running = [asyncio.create_task(coordinator.purge.run())]
    try:
        yield coordinator
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def server() -> AsyncIterator[DeletionServer]:
    server = DeletionServer()
    following = [asyncio.create_task(informer.run()) for informer in (server.checkpoints, server.nodes)]
    yield server
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


async def test_one_that_cannot_be_attended_to_keeps_no_other(
    server: DeletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.node("node-1")
    broken, whole = server.add(READY), server.add(checkpoint(2, CheckpointStep.READY))
    named = module._describe_removal

    def breaking(order: RemoveSnapshot | DiscardCancelled) -> str:
        if order.checkpoint_uid == READY.uid:
            raise ValueError("a defect")
        return named(order)

    monkeypatch.setattr(module, "_describe_removal", breaking)
    async with leading(server) as coordinator:
        await coordinator.delete(broken)
        await coordinator.rest()
        await coordinator.delete(whole)
        await coordinator.until_gone(whole)
        monkeypatch.setattr(module, "_describe_removal", named)
        _, namespace, name = broken
        await server.patch(CHECKPOINTS, name, namespace, {"metadata": {"annotations": {"a": "b"}}})
        await coordinator.until_gone(broken)


async def test_deleted_checkpoint_takes_its_snapshot_along_and_no_other(server: DeletionServer) -> None:
    server.node("elsewhere")
    server.node("node-1")
    key, other = server.add(READY), server.add(checkpoint(2, CheckpointStep.READY))
    async with leading(server) as coordinator:
        await coordinator.rest()
        assert server.asked == [], "nobody has deleted anything"
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert server.snapshots == {SnapshotRef(checkpoint(2).identity, 1)}
    assert server.asked == ["node-1"], "whoever took it has it at hand"
    assert other in server.objects
    assert coordinator.let_go == [READY.uid]


async def test_another_node_does_it_when_the_one_that_took_it_is_gone(server: DeletionServer) -> None:
    server.node("node-1", ready=False)
    server.node("elsewhere")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert (server.asked, server.snapshots) == (["elsewhere"], set())


async def test_node_that_fails_is_followed_by_another(server: DeletionServer) -> None:
    server.agents["node-1"] = lambda order: RemovalFailed(order.checkpoint_uid, "its network is down")
    server.node("node-1")
    server.node("elsewhere")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert (server.asked, server.snapshots, coordinator.told) == (["node-1", "elsewhere"], set(), [])


async def test_node_that_is_lost_before_it_answers_is_followed_by_another(server: DeletionServer) -> None:
    server.agents["node-1"] = lambda _: None
    server.node("node-1")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until(lambda: server.asked == ["node-1"])
        server.node("elsewhere")
        server.node("node-1", ready=False)
        await coordinator.until_gone(key)
    assert (server.asked[-1], server.snapshots) == ("elsewhere", set())


async def test_agent_that_does_not_answer_is_followed_by_another(
    server: DeletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.02)
    server.agents["node-1"] = lambda _: None
    server.node("node-1")
    server.node("elsewhere")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert (server.asked[-1], server.snapshots) == ("elsewhere", set())


async def test_without_any_agent_it_waits_for_one_however_long(
    server: DeletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
        await coordinator.rest()
        assert key in server.objects
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 60.0)
        server.node("node-1")
        await coordinator.until_gone(key)
    assert (server.snapshots, coordinator.told) == (set(), [])


async def test_store_that_never_answers_is_given_up_and_that_is_said(
    server: DeletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 2.0)  # it answers well before
    server.agents["node-1"] = lambda order: RemovalFailed(order.checkpoint_uid, "the store cannot be reached")
    server.node("node-1")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert server.snapshots == {REF}
    (told,) = coordinator.told
    assert (told.reason, told.warning) == ("SnapshotRemovalFailed", True)
    assert f"Snapshot {REF} stays in the store" in told.message
    assert "the store cannot be reached" in told.message
    assert told.involved["uid"] == f"uid-{READY.uid}"


@pytest.mark.parametrize("why", ["it failed", "retention has removed it", "another one that stays describes it, too"])
async def test_what_has_no_data_of_its_own_goes_at_once(server: DeletionServer, why: str) -> None:
    server.node("node-1")
    key = server.add(checkpoint(1, CheckpointStep.FAILED) if why.startswith("it failed") else READY)
    if why.startswith("another"):
        server.add(replace(READY, uid="another"))
    async with leading(server) as coordinator:
        if why.startswith("retention"):
            coordinator.workload_gone.add(REF)
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert server.asked == []


@pytest.mark.parametrize("one", [checkpoint(1, CheckpointStep.FAILED), READY])
async def test_what_the_coordinator_removes_by_itself_waits_for_no_agent(
    server: DeletionServer, one: Checkpoint
) -> None:
    """A failure that is forgotten, and a record that is forgotten after retention has removed its snapshot."""
    key = server.add(one, labels={names.NODE: "node-1"})
    projection = Projection(server, SYSTEM, is_removed=lambda _: True)
    projection.register_existing_object(one, server.objects[key])
    async with leading(server) as coordinator:
        coordinator.workload_gone.add(REF)
        writing = asyncio.create_task(projection.run())
        projection.write((), (one,))
        await coordinator.until_gone(key)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_what_is_in_flight_is_removed_when_it_is_settled(server: DeletionServer) -> None:
    server.node("node-1")
    killing = replace(READY, step=CheckpointStep.KILLING)
    key = server.add(killing, labels={names.NODE: "node-1"})
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.rest()
        server.settle(key, replace(READY, unconfirmed=True))
        await coordinator.rest()
        assert (server.asked, coordinator.let_go) == ([], []), "its frozen pod is not ended yet"
        server.settle(key, replace(READY, verdict=Verdict.COMMITTED))
        await coordinator.until_gone(key)
    assert server.snapshots == set()


def _left(ago: float) -> Checkpoint:
    """Called off when it was being dumped; its node, which may have committed it, has not said a word since."""
    over = SERVER_TIME.seconds() - ago
    failed = checkpoint(1, CheckpointStep.FAILED)
    return replace(failed, cancelled=True, unconfirmed=True, frozen_at=over - 60, finished_at=over)


async def test_any_node_removes_what_a_node_may_have_committed_that_is_lost(server: DeletionServer) -> None:
    server.agents["node-1"] = lambda _: None
    server.node("elsewhere")
    left = _left(module.LEFT_SECONDS + 1)
    key = server.add(left, labels={names.NODE: "node-1"})
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert server.asked[-1] == "elsewhere"
    assert server.discarded == [DiscardCancelled(left.uid, left.identity)]
    assert coordinator.let_go == [left.uid]


async def test_node_that_is_silent_may_still_say_that_nothing_is_left(server: DeletionServer) -> None:
    server.node("node-1", ready=False)
    server.node("elsewhere")
    left = _left(60)
    key = server.add(left, labels={names.NODE: "node-1"})
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.rest()
        assert (server.asked, coordinator.let_go) == ([], []), "its own node may have to thaw a pod first"
        server.settle(key, replace(left, unconfirmed=False))
        await coordinator.until_gone(key)
    assert server.asked == []


async def test_silence_of_a_node_keeps_nobody_for_ever(server: DeletionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEFT_SECONDS", 60.2)
    server.agents["node-1"] = lambda _: None
    server.node("elsewhere")
    key = server.add(_left(60), labels={names.NODE: "node-1"})
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until_gone(key)
    assert server.asked[-1] == "elsewhere"


async def test_snapshot_that_is_being_fetched_stays_until_that_is_over(server: DeletionServer) -> None:
    server.node("node-1")
    key = server.add(READY)
    fetching = replace(RESTORE, step=RestoreStep.STAGING, snapshot=REF)
    async with leading(server) as coordinator:
        coordinator.in_use.on_records_saved((fetching,), ())
        await coordinator.delete(key)
        await coordinator.rest()
        assert server.snapshots == {REF}
        coordinator.in_use.on_records_saved((replace(fetching, step=RestoreStep.RUNNING),), ())
        await coordinator.until_gone(key)
    assert server.snapshots == set()


async def test_checkpoint_whose_eviction_is_held_stays_until_it_is_let_go(server: DeletionServer) -> None:
    server.node("node-1")
    key = server.add(READY, labels={names.NODE: "node-1"})
    holding = replace(HOLD, step=HoldStep.HOLDING, checkpoints=(READY.uid,))
    async with leading(server, loaded=False) as coordinator:
        await coordinator.delete(key)
        await coordinator.rest()
        assert server.asked == [], "nobody knows yet what is needed"
        coordinator.in_use.on_records_saved((holding,), ())
        await coordinator.rest()
        assert server.asked == []
        coordinator.in_use.on_records_saved((replace(holding, step=HoldStep.RELEASING),), ())
        await coordinator.until_gone(key)


async def test_what_an_earlier_installation_left_is_kept_again_and_finalizers_of_others_stay(
    server: DeletionServer,
) -> None:
    server.node("node-1")
    key = server.add(READY, finalizers=["somebody.else/s"])
    async with leading(server) as coordinator:
        await coordinator.until(lambda: len(server.objects[key]["metadata"]["finalizers"]) == 2)
        await coordinator.delete(key)
        await coordinator.until(lambda: server.objects[key]["metadata"]["finalizers"] == ["somebody.else/s"])
    assert server.snapshots == set()


async def test_another_coordinator_goes_on_where_one_was_killed(server: DeletionServer) -> None:
    server.agents["node-1"] = lambda _: None
    server.node("node-1")
    key = server.add(READY)
    async with leading(server) as coordinator:
        await coordinator.delete(key)
        await coordinator.until(lambda: server.asked)
    number = server.objects[key]["status"]["order"]["number"]
    del server.agents["node-1"]
    async with leading(server) as coordinator:
        await coordinator.rest()
        assert server.objects[key]["status"]["order"]["number"] == number, "the order stands"
        server.tell(key)  # as the agent's watch begins anew
        await coordinator.until_gone(key)


@pytest.mark.parametrize("seed", range(40))
async def test_coordinators_killed_at_any_instant_leave_nothing_behind_and_remove_nothing_else(
    server: DeletionServer, seed: int
) -> None:
    rng = Random(seed)
    ready = [checkpoint(number, CheckpointStep.READY) for number in range(8)]
    keys = {one.uid: server.add(one) for one in ready}
    deleted = rng.sample(ready, 5)

    def answer(order: RemoveSnapshot) -> Outcome | None:
        if rng.random() < 0.3:
            return RemovalFailed(order.checkpoint_uid, "no luck")
        server.snapshots.discard(order.snapshot)
        return SnapshotRemoved(order.checkpoint_uid) if rng.random() < 0.8 else None

    for node in ("node-1", "node-2"):
        server.node(node)
        server.agents[node] = answer
    for life in range(6):
        async with leading(server) as coordinator:
            if life == 0:
                await coordinator.delete(*(keys[one.uid] for one in deleted))
            if rng.random() < 0.5:
                server.traffic.fails.add(server.traffic.requests + rng.randrange(1, 6))
                server.traffic.answers_lost.add(server.traffic.requests + rng.randrange(1, 6))
            for _ in range(rng.randrange(25)):
                await asyncio.sleep(0)
    server.agents.clear()
    async with leading(server) as coordinator:
        for key in keys.values():
            server.tell(key)  # as watches that begin anew
        await coordinator.until_gone(*(keys[one.uid] for one in deleted))
        assert coordinator.told == []
    assert server.snapshots == {cast("SnapshotRef", one.snapshot) for one in ready if one not in deleted}
    shown = {key for key in server.objects if key[0] == CHECKPOINTS}
    assert shown == {keys[one.uid] for one in ready if one not in deleted}
