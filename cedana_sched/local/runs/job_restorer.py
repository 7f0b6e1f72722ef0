"""Implements the agent's `WorkloadRestorer` for jobs: a run's uid is its incarnation's, whatever the Restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cedana_sched.agent.workload_runtime import UNKNOWN_ORIGIN, SnapshotOrigin
from cedana_sched.local.runs.runtime import LocalRuntime
from cedana_sched.model.preemption import WorkloadRef


class JobRestorer:
    """Restores the runs of this machine's runtime."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime

    async def restore(
        self,
        _: str,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin = UNKNOWN_ORIGIN,
        /,
    ) -> None:
        """See `LocalRuntime.restore_from_images`."""
        await self._runtime.restore_from_images(workload, images, restore_facts, origin)

    async def describe_changed_files(self, _: WorkloadRef) -> tuple[str, ...]:
        """Return none: what was truncated is in the engine's log."""
        return ()

    async def start_cold(self, _: str, workload: WorkloadRef, why: str | None) -> None:
        """See `LocalRuntime.start_cold`."""
        await self._runtime.start_cold(workload, why)

    async def fail_workload(self, _: str, workload: WorkloadRef, why: str) -> None:
        """See `LocalRuntime.fail_waiting_workload`."""
        await self._runtime.fail_waiting_workload(workload, why)
