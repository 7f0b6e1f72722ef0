"""The containers of one workload are frozen, thawed and ended as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.agent.frozen_workloads import FrozenWorkloads
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime


class FakePod(FakeRuntime):
    """Two containers, the second beside the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.second = folder / "second"
        self.second.mkdir()
        (self.second / "freezer.state").write_text("THAWED")
        (self.second / "cgroup.procs").write_text("")
        self.ended: list[str] = []

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        trees = (RunningContainer(1, self.freezer, "first"), RunningContainer(2, self.second, "second"))
        return RunningWorkload(trees) if self.runs else None

    async def kill_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        self.ended.append(workload.uid)
        return await super().kill_frozen(checkpoint_uid, workload, insist=insist)

    @property
    def states(self) -> list[str]:
        return [(folder / "freezer.state").read_text() for folder in (self.freezer, self.second)]


@pytest.fixture
def pod(tmp_path: Path) -> FakePod:
    return FakePod(tmp_path)


async def test_all_its_containers_are_frozen_and_thawed(pod: FakePod) -> None:
    workloads = FrozenWorkloads(pod)
    await workloads.freeze("c1", WORKLOAD)
    assert pod.states == ["FROZEN", "FROZEN"]
    await workloads.thaw("c1", WORKLOAD)
    assert pod.states == ["THAWED", "THAWED"]


async def test_its_runtime_ends_it_and_nothing_thaws_it_afterwards(pod: FakePod) -> None:
    workloads = FrozenWorkloads(pod)
    await workloads.freeze("c1", WORKLOAD)
    await workloads.kill("c1", WORKLOAD)
    await workloads.thaw("c1", WORKLOAD)
    assert pod.ended == [WORKLOAD.uid]
    assert pod.states == ["FROZEN", "FROZEN"]
