"""A workload in a pretended cgroup of the first generation: plain files that a freezer may write and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.workload_runtime import UNKNOWN_ORIGIN, RunningContainer, RunningWorkload, SnapshotOrigin
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.store.storage_config import StorageConfig

WORKLOAD = WorkloadRef(uid="w1", namespace="default", name="sim", node="here")


class FakeRuntime:
    """Runs one workload, or nothing; `continuing` is raised by `restore`."""

    def __init__(self, folder: Path) -> None:
        self.freezer = folder
        (folder / "freezer.state").write_text("THAWED")
        (folder / "cgroup.procs").write_text("")
        self.runs = True
        self.restored = False
        self.continuing: list[Exception] = []
        self.continued: list[dict[str, Any]] = []
        self.origins: list[SnapshotOrigin] = []
        self.changed_files: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        return (self.freezer / "freezer.state").read_text()

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        tree = RunningContainer(1, self.freezer)
        return RunningWorkload((tree,), is_restored=self.restored) if self.runs else None

    async def kill_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        self.runs = False
        return True

    async def undo_kill(self, checkpoint_uid: str, workload: WorkloadRef) -> None: ...

    async def restore(
        self,
        _: str,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin = UNKNOWN_ORIGIN,
    ) -> None:
        self.origins.append(origin)
        if self.continuing:
            raise self.continuing.pop(0)
        self.continued.append(restore_facts)
        self.runs = True

    async def describe_changed_files(self, workload: WorkloadRef) -> tuple[str, ...]:
        return self.changed_files

    async def start_cold(self, _: str, workload: WorkloadRef, why: str | None) -> None:
        self.runs = True

    async def fail_workload(self, _: str, workload: WorkloadRef, why: str) -> None: ...


class _Toolchain:
    version = "4.2.1"


def agent_of(runtime: FakeRuntime, folder: Path, store: Path, **given: Any) -> NodeAgent:
    """An agent that never starts CRIU."""
    return NodeAgent(
        runtime=runtime,
        restorer=runtime,
        storage=StorageConfig.load({"path": str(store)}),
        toolchain=cast("Any", _Toolchain()),
        cache_directory=folder / "cache",
        state_directory=folder / "state",
        **given,
    )
