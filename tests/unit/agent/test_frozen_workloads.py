"""Orders of one checkpoint that overtake one another leave no workload frozen, and thaw no other checkpoint's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.agent import frozen_workloads
from cedana_sched.agent.frozen_workloads import CheckpointOverError, FrozenWorkloads
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime


@pytest.fixture
def runtime(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime(tmp_path)


async def test_a_freeze_that_comes_after_the_end_of_its_checkpoint_is_refused(runtime: FakeRuntime) -> None:
    workloads = FrozenWorkloads(runtime)
    await workloads.freeze("c1", WORKLOAD)
    await workloads.thaw("c1", WORKLOAD)
    with pytest.raises(CheckpointOverError):
        await workloads.freeze("c1", WORKLOAD)
    assert runtime.state == "THAWED"


async def test_a_thaw_that_overtakes_the_freeze_waits_for_it(runtime: FakeRuntime) -> None:
    workloads = FrozenWorkloads(runtime)
    freezing = asyncio.create_task(workloads.freeze("c1", WORKLOAD))
    await asyncio.sleep(0)
    await workloads.thaw("c1", WORKLOAD)
    await freezing
    assert runtime.state == "THAWED"


async def test_nobody_thaws_what_another_checkpoint_has_frozen(runtime: FakeRuntime) -> None:
    workloads = FrozenWorkloads(runtime)
    await workloads.freeze("c2", WORKLOAD)
    await workloads.thaw("c1", WORKLOAD)
    assert runtime.state == "FROZEN"


async def test_an_agent_that_remembers_nothing_thaws_what_it_is_told_to(runtime: FakeRuntime) -> None:
    await FrozenWorkloads(runtime).freeze("c1", WORKLOAD)
    await FrozenWorkloads(runtime).thaw("c1", WORKLOAD)
    assert runtime.state == "THAWED"


async def test_a_workload_without_processes_is_not_frozen(runtime: FakeRuntime) -> None:
    runtime.runs = False
    assert await FrozenWorkloads(runtime).freeze("c1", WORKLOAD) is None


def test_only_so_many_ended_checkpoints_are_remembered(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_workloads, "CHECKPOINTS_REMEMBERED", 3)
    workloads = FrozenWorkloads(runtime)
    for number in range(5):
        workloads.end_checkpoint(f"c{number}")
    assert [workloads.is_checkpoint_over(f"c{number}") for number in range(5)] == [False, False, True, True, True]
