"""A workload that ended by itself is reported once its owner knows how it ended: until then nobody may evict it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.agent import node_agent
from cedana_sched.model.orders import CheckpointFailed, Freeze, Outcome
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime, agent_of


class _KnowingRuntime(FakeRuntime):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.known = asyncio.Event(), asyncio.Event()
        self.runs = False

    async def wait_ended(self, uid: str) -> None:
        assert uid == WORKLOAD.uid
        self.asked.set()
        await self.known.wait()


async def _frozen(runtime: FakeRuntime, folder: Path) -> Outcome:
    wait_ended = runtime.wait_ended if isinstance(runtime, _KnowingRuntime) else None
    async with agent_of(runtime, folder, folder, wait_ended=wait_ended) as agent:
        (outcome,) = [outcome async for outcome in agent.perform(Freeze("c1", WORKLOAD))]
    return outcome


def _assert_ended(outcome: Outcome) -> None:
    assert isinstance(outcome, CheckpointFailed)
    assert "no processes" in outcome.why
    assert (outcome.retryable, outcome.workload_gone) == (False, True)


async def test_answer_waits_until_the_owner_knows(tmp_path: Path) -> None:
    runtime = _KnowingRuntime(tmp_path)
    freezing = asyncio.create_task(_frozen(runtime, tmp_path))
    await asyncio.wait_for(runtime.asked.wait(), 60)
    assert not freezing.done()
    runtime.known.set()
    _assert_ended(await asyncio.wait_for(freezing, 60))


async def test_workload_whose_owner_knows_of_no_end_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_agent, "END_KNOWN_SECONDS", 0.01)
    outcome = await asyncio.wait_for(_frozen(_KnowingRuntime(tmp_path), tmp_path), 60)
    assert isinstance(outcome, CheckpointFailed)
    assert not outcome.workload_gone
    assert outcome.retryable, "its containers are being started again: another attempt finds them"


async def test_answer_comes_at_once_where_nobody_has_to_be_told(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path)
    runtime.runs = False
    _assert_ended(await asyncio.wait_for(_frozen(runtime, tmp_path), 60))
