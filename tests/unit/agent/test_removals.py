"""An agent removes the snapshot that it is told, once or again, and what only that one needed; and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from cedana_sched.agent.garbage import Garbage
from cedana_sched.agent.node import NodeAgent
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import Outcome, Remove, Removed, RemoveFailed
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.snapshots import SnapshotStore
from tests.servers.snapshots import take
from tests.unit.agent.agent_builders import FakeRuntime, agent_of

SIM = Identity("bio", "md")
PAGES = bytes(range(256)) * 16 * 40


def _agent(tmp_path: Path, store: Path) -> NodeAgent:
    return agent_of(FakeRuntime(tmp_path), tmp_path, store)


async def _performed(agent: NodeAgent, ref: SnapshotRef) -> Outcome:
    (outcome,) = [outcome async for outcome in agent.perform(Remove("c1", ref))]
    return outcome


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


async def test_snapshot_goes_and_its_successor_that_shares_its_packs_stays_whole(tmp_path: Path, place: Path) -> None:
    store = SnapshotStore.open(StorageConfig.load({"path": str(place)}))
    first = take(store, SIM, {"pages-1.img": PAGES}).ref
    second = take(store, SIM, {"pages-1.img": PAGES}).ref
    agent = _agent(tmp_path, place)
    assert await _performed(agent, first) == Removed("c1")
    assert await _performed(agent, first) == Removed("c1"), "it is gone already"
    await agent._garbage.close()
    assert [summary.ref for summary in store.list("bio")] == [second]
    assert store.verify(second).ok


async def test_store_that_cannot_be_written_is_said(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: SnapshotStore, ref: SnapshotRef) -> None:
        raise StoreUnavailableError("the store does not answer", remedy="wait")

    monkeypatch.setattr(SnapshotStore, "remove", fails)
    outcome = await _performed(_agent(tmp_path, place), SnapshotRef(SIM, 1))
    assert isinstance(outcome, RemoveFailed)
    assert "the store does not answer" in outcome.why


class _Collected:
    """A store that counts the runs; the numbers in `fails` fail."""

    def __init__(self, *fails: int) -> None:
        self.runs: list[str] = []
        self._fails = fails

    def collect_garbage(self, namespace: str) -> None:
        self.runs.append(namespace)
        if len(self.runs) in self._fails:
            raise StoreUnavailableError("the store does not answer", remedy="wait")


async def _settled(garbage: Garbage) -> None:
    async with asyncio.timeout(5):
        while tasks := tuple(garbage._collecting.values()):
            await asyncio.gather(*tasks)


async def test_garbage_of_many_removals_is_collected_in_two_runs() -> None:
    store = _Collected()
    garbage = Garbage(cast("SnapshotStore", store), StoreThreads(), second_run_seconds=0)
    for _ in range(5):
        garbage.left_over("bio")
    await _settled(garbage)
    assert store.runs == ["bio", "bio"]
    garbage.left_over("bio")
    await _settled(garbage)
    assert store.runs == ["bio"] * 4


async def test_run_that_fails_is_made_up_for() -> None:
    store = _Collected(1)
    garbage = Garbage(cast("SnapshotStore", store), StoreThreads(), second_run_seconds=0)
    garbage.left_over("bio")
    await _settled(garbage)
    assert store.runs == ["bio"] * 4, "the second one only condemns, then"


async def test_agent_that_ends_does_not_wait_for_the_second_run() -> None:
    store = _Collected()
    garbage = Garbage(cast("SnapshotStore", store), StoreThreads())
    garbage.left_over("bio")
    await asyncio.wait_for(garbage.close(), 5)
