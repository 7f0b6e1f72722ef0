"""A container that is restarted at the moment of the freeze: nothing runs on beside a dump, or stays frozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import CheckpointFailed, Dump, Freeze, Frozen, Order, Outcome
from cedana_sched.model.policy import Compression
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime, agent_of

FREEZE = Freeze("c1", WORKLOAD)
DUMP = Dump("c1", WORKLOAD, Identity("default", "md"), Compression.ZSTD, "why", "kueue", 60.0)


class Restarting(FakeRuntime):
    """Its container is another one once `restart` was called: with another first process, in another cgroup."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pid = 1

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        return RunningWorkload((RunningContainer(self.pid, self.freezer, "main"),)) if self.runs else None

    def restart(self) -> None:
        self.pid += 1
        self.freezer = self.freezer / f"restart{self.pid}"
        self.freezer.mkdir()
        (self.freezer / "freezer.state").write_text("THAWED")
        (self.freezer / "cgroup.procs").write_text("")

    def vanish(self) -> None:
        self.runs = False


async def perform(runtime: FakeRuntime, folder: Path, *orders: Order) -> list[Outcome]:
    async with agent_of(runtime, folder, folder) as agent:
        return [outcome for order in orders async for outcome in agent.perform(order)]


@pytest.mark.parametrize("happens", [Restarting.restart, Restarting.vanish], ids=["new", "gone"])
async def test_freeze_fails_cleanly_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Restarting], None]
) -> None:
    runtime = Restarting(tmp_path)
    freeze_together = freezer.freeze_together

    def freeze_what_is_restarted(cgroups: tuple[Path, ...]) -> None:
        happens(runtime)
        freeze_together(cgroups)

    monkeypatch.setattr(freezer, "freeze_together", freeze_what_is_restarted)
    (failed,) = await perform(runtime, tmp_path, FREEZE)
    assert isinstance(failed, CheckpointFailed)
    assert failed.retryable
    assert "was being restarted" in failed.why
    assert (tmp_path / "freezer.state").read_text() == "THAWED"

    monkeypatch.undo()
    runtime.runs = True
    assert await perform(runtime, tmp_path, Freeze("c2", WORKLOAD)) == [Frozen("c2")]
    assert runtime.state == "FROZEN"


async def test_what_was_restarted_between_freeze_and_dump_is_frozen_anew(tmp_path: Path) -> None:
    runtime = Restarting(tmp_path)
    async with agent_of(runtime, tmp_path, tmp_path) as agent:
        assert [outcome async for outcome in agent.perform(FREEZE)] == [Frozen("c1")]
        runtime.restart()
        (failed,) = [outcome async for outcome in agent.perform(DUMP)]
    assert isinstance(failed, CheckpointFailed)
    assert failed.retryable
    assert "was restarted after it had been frozen" in failed.why
