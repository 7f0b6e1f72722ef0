"""Pods as workloads: what the agent asks of a runtime, over the CRI containers of this node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from cedana_sched.model.preemption import WorkloadRef


class PodReturns(Protocol):
    """The way back of pods, through the restore container and the runtime handler. Every call is idempotent."""

    async def was_restored(self, workload: WorkloadRef) -> bool:
        """Whether the containers that run now were continued from a snapshot."""
        ...

    async def continue_from(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """See `WorkloadRuntime.continue_from`; returns when every container of the snapshot runs."""
        ...

    async def start_cold(self, workload: WorkloadRef, why: str | None) -> None:
        """See `WorkloadRuntime.start_cold`."""
        ...

    async def give_up(self, workload: WorkloadRef, why: str) -> None:
        """See `WorkloadRuntime.give_up`."""
        ...
