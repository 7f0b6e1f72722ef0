"""An agent removes the snapshot that it is told, once or again, and what only that one needed; and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from cedana_sched.agent.garbage import Garbage
from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import StoreError, StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    ApplyRetention,
    Outcome,
    RemovalFailed,
    RemoveSnapshot,
    RetentionApplied,
    SnapshotRemoved,
)
from cedana_sched.model.policy import Retention
from cedana_sched.store.bounded_listing import CrowdedNamespaceError
from cedana_sched.store.collection_turns import CompletedRun, TurnResult
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.garbage import GarbageReport
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take
from tests.unit.agent.agent_builders import FakeRuntime, agent_of

SIM = Identity("bio", "md")
PAGES = bytes(range(256)) * 16 * 40


def _agent(tmp_path: Path, store: Path) -> NodeAgent:
    return agent_of(FakeRuntime(tmp_path), tmp_path, store)


async def _performed(agent: NodeAgent, ref: SnapshotRef) -> Outcome:
    (outcome,) = [outcome async for outcome in agent.perform(RemoveSnapshot("c1", ref))]
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
    assert await _performed(agent, first) == SnapshotRemoved("c1")
    assert await _performed(agent, first) == SnapshotRemoved("c1"), "it is gone already"
    await agent._garbage.close()
    assert [summary.ref for summary in store.list("bio")] == [second]
    assert store.verify(second).ok


async def test_a_node_that_never_saw_the_store_has_not_removed_what_is_in_it(tmp_path: Path, place: Path) -> None:
    agent = agent_of(FakeRuntime(tmp_path), tmp_path, place, store_in_use=True)
    said = await _performed(agent, SnapshotRef(SIM, 1))
    assert isinstance(said, RemovalFailed)
    assert "is not mounted" in said.why


async def test_store_that_cannot_be_written_is_said(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: SnapshotStore, ref: SnapshotRef) -> None:
        raise StoreUnavailableError("the store does not answer", remedy="wait")

    monkeypatch.setattr(SnapshotStore, "remove", fails)
    outcome = await _performed(_agent(tmp_path, place), SnapshotRef(SIM, 1))
    assert isinstance(outcome, RemovalFailed)
    assert "the store does not answer" in outcome.why


class _Collected:
    """A store that counts the runs; the numbers in `fails` fail, and those in `others` were another node's."""

    def __init__(self, *fails: int, others: tuple[TurnResult, ...] = ()) -> None:
        self.runs: list[str] = []
        self.turns = 0
        self._fails = fails
        self._others = list(others)

    def collect_in_turn(self, namespace: str, every_seconds: float) -> TurnResult:
        self.turns += 1
        if self._others:
            return self._others.pop(0)
        self.runs.append(namespace)
        if len(self.runs) in self._fails:
            raise StoreUnavailableError("the store does not answer", remedy="wait")
        return TurnResult(GarbageReport(namespace), CompletedRun(0, 0))


def _garbage(store: _Collected) -> Garbage:
    return Garbage(cast("SnapshotStore", store), StoreThreads(), every_seconds=0, second_run_seconds=0)


async def _settled(garbage: Garbage) -> None:
    async with asyncio.timeout(60):
        while tasks := tuple(garbage._collecting.values()):
            await asyncio.gather(*tasks)


async def test_garbage_of_many_removals_is_collected_in_two_runs() -> None:
    store = _Collected()
    garbage = _garbage(store)
    for _ in range(5):
        garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.runs == ["bio", "bio"]
    garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.runs == ["bio"] * 4


async def test_run_that_fails_is_made_up_for() -> None:
    store = _Collected(1, 3)
    garbage = _garbage(store)
    garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.runs == ["bio"] * 4, "two that failed, and two that did not"


async def test_run_of_another_node_that_began_after_the_removal_counts() -> None:
    """Only such a one: an earlier one has not seen what was removed, and one under way may not have."""
    before, nobody_yet, after = CompletedRun(9e9, 9e9), None, CompletedRun(-60, -60)
    store = _Collected(others=(TurnResult(None, before), TurnResult(None, nobody_yet), TurnResult(None, after)))
    garbage = _garbage(store)
    garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.turns == 4
    assert store.runs == ["bio"], "the second run is made here"


@pytest.mark.parametrize("problem", [CredentialsRefusedError, CrowdedNamespaceError])
async def test_what_this_node_cannot_collect_it_leaves_to_others(problem: type[StoreError]) -> None:
    class Refused(_Collected):
        def collect_in_turn(self, namespace: str, every_seconds: float) -> TurnResult:
            turn = super().collect_in_turn(namespace, every_seconds)
            if self.turns == 2:
                raise problem("no pod of it is here")
            return turn

    store = Refused()
    garbage = _garbage(store)
    garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.turns == 2, "it was refused, and did not ask for ever"
    garbage.schedule_collection("bio")
    await _settled(garbage)
    assert store.turns == 4, "and a later removal has it collect again"


async def test_agent_that_ends_does_not_wait_for_the_second_run() -> None:
    store = _Collected()
    garbage = Garbage(cast("SnapshotStore", store), StoreThreads())
    garbage.start()
    garbage.schedule_collection("bio")
    await asyncio.wait_for(garbage.close(), 60)


async def test_retaining_reads_its_own_replica_and_leaves_the_collection_for_later(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore.open(StorageConfig(path=place))
    for index in range(6):
        for _ in range(3):
            take(store, Identity("bio", "md", index), {"pages-1.img": PAGES})
    counting = CountingBackend(place)
    monkeypatch.setattr("cedana_sched.store.snapshot_store.open_backend", lambda *_, **_options: counting)
    agent = _agent(tmp_path, place)

    retain = ApplyRetention("c1", Identity("bio", "md", 2), Retention(keep_last=1), spare=(1,))
    (outcome,) = [outcome async for outcome in agent.perform(retain)]

    assert outcome == RetentionApplied("c1", (SnapshotRef(Identity("bio", "md", 2), 2),))
    assert list(agent._garbage._collecting) == ["bio"]
    assert all("/snapshots/md/2/" in key for key in counting.keys_read)
    assert counting.reads <= 4
    assert counting.keys_listed <= 4 * 4
    await agent._garbage.close()
