"""The snapshot of a checkpoint that was called off goes, also where the store is away when it should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.agent import cancelled_snapshots
from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    DiscardCancelled,
    FindSnapshot,
    RemovalFailed,
    SnapshotFound,
    SnapshotRemoved,
)
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.pauses import shorten_pauses
from tests.servers.snapshots import take
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime, agent_of

SIM = Identity("default", "sim")


class Place:
    """A store that can be away, with one snapshot that is good, and a later one whose checkpoint is called off."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.store_folder = folder / "store"
        self.store_folder.mkdir()
        self.store = SnapshotStore.open(StorageConfig.load({"path": str(self.store_folder)}))
        self.good = take(self.store, SIM, {"pages-1.img": b"before"}, "c0").ref
        take(self.store, SIM, {"pages-1.img": b"called off"}, "c1")
        self.is_away = True
        self.removed = asyncio.Event()
        remove = SnapshotStore.remove
        loop = asyncio.get_running_loop()

        def removing(store: SnapshotStore, *given: Any) -> None:
            if self.is_away:
                raise StoreUnavailableError("the store does not answer", remedy="wait")
            remove(store, *given)
            loop.call_soon_threadsafe(self.removed.set)

        patch.setattr(SnapshotStore, "remove", removing)
        shorten_pauses(patch)

    def agent(self) -> NodeAgent:
        return agent_of(FakeRuntime(self._folder), self._folder, self.store_folder)

    def part(self) -> cancelled_snapshots.CancelledSnapshots:
        return cancelled_snapshots.CancelledSnapshots(self.store, StoreThreads(), self._folder / "notes")

    def left(self) -> list[str]:
        return [one.checkpoint_uid for one in self.store.list()]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


async def _perform(agent: NodeAgent, order: Any) -> Any:
    (outcome,) = [outcome async for outcome in agent.perform(order)]
    return outcome


async def test_called_off_snapshot_goes_when_the_store_is_back(place: Place) -> None:
    agent = place.agent()
    abort = Abort("c1", WORKLOAD, SIM, "called off")
    assert await _perform(agent, abort) == Aborted("c1", cleanup_pending=True)
    assert await _perform(agent, abort) == Aborted("c1", cleanup_pending=True), "as long as it is there"
    place.is_away = False
    async with asyncio.timeout(60):
        await place.removed.wait()
    assert place.left() == ["c0"]
    assert await _perform(agent, abort) == Aborted("c1")
    found = await _perform(agent, FindSnapshot("r1", SIM))
    assert found == SnapshotFound("r1", place.good), "long after the coordinator has forgotten that checkpoint"
    await agent._called_off.close()


async def test_next_agent_removes_what_the_one_before_could_not(place: Place) -> None:
    before = place.part()
    await before.remove(SIM, "c1")
    await before.close()
    place.is_away = False
    after = place.part()
    after.start()
    assert after._trying is not None
    await asyncio.wait_for(after._trying, 60)
    assert place.left() == ["c0"]
    last = place.part()
    last.start()
    assert last._trying is None, "nothing is left to be done"


async def test_nobody_restores_it_by_its_name_while_it_is_there(place: Place) -> None:
    agent, requested = place.agent(), SnapshotRef(SIM, 2)
    found = await _perform(agent, FindSnapshot("r1", SIM, requested, excluding=("c1",)))
    assert (found.snapshot, "was cancelled" in found.problem) == (None, True)
    assert await _perform(agent, FindSnapshot("r2", SIM, place.good, excluding=("c1",))) == SnapshotFound(
        "r2", place.good
    )


async def test_any_node_removes_what_another_one_has_committed(place: Place) -> None:
    agent = place.agent()
    assert isinstance(await _perform(agent, DiscardCancelled("c1", SIM)), RemovalFailed)
    place.is_away = False
    assert await _perform(agent, DiscardCancelled("c1", SIM)) == SnapshotRemoved("c1")
    assert await _perform(agent, DiscardCancelled("c1", SIM)) == SnapshotRemoved("c1"), "there is nothing any more"
    assert place.left() == ["c0"]
    await agent._garbage.close()
