"""A workload that is connected to another of its own is not frozen: it could not go on at another address."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

from cedana_sched.agent import workload_preflight
from cedana_sched.agent.workload_preflight import FindPeer
from cedana_sched.model.orders import CheckpointFailed, Freeze, Frozen, Outcome
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime, agent_of

PEER = "10.0.1.2"


async def _find_peer(workload: WorkloadRef, addresses: Collection[str]) -> str | None:
    assert workload == WORKLOAD
    return "sim-1" if PEER in addresses else None


async def _frozen(runtime: FakeRuntime, folder: Path, find_peer: FindPeer | None = _find_peer) -> Outcome:
    async with agent_of(runtime, folder, folder, find_peer=find_peer) as agent:
        (outcome,) = [outcome async for outcome in agent.perform(Freeze("c1", WORKLOAD))]
    return outcome


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Addresses that the workload is connected to."""
    addresses: set[str] = set()

    def remote_addresses(pids: Iterable[int]) -> frozenset[str]:
        assert list(pids) == [1]
        return frozenset(addresses)

    monkeypatch.setattr(workload_preflight, "remote_addresses", remote_addresses)
    return addresses


async def test_one_that_talks_to_another_of_its_own_is_left_running(tmp_path: Path, connected: set[str]) -> None:
    connected |= {PEER, "10.0.9.9"}
    runtime = FakeRuntime(tmp_path)
    outcome = await _frozen(runtime, tmp_path)
    assert isinstance(outcome, CheckpointFailed)
    assert "connected to sim-1" in outcome.why
    assert not outcome.retryable
    assert runtime.state == "THAWED"


async def test_one_that_talks_to_others_is_frozen(tmp_path: Path, connected: set[str]) -> None:
    connected.add("10.0.9.9")
    assert isinstance(await _frozen(FakeRuntime(tmp_path), tmp_path), Frozen)


async def test_where_workloads_have_no_addresses_nobody_is_asked(tmp_path: Path, connected: set[str]) -> None:
    connected.add(PEER)
    assert isinstance(await _frozen(FakeRuntime(tmp_path), tmp_path, None), Frozen)
