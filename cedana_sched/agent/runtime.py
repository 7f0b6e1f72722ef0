"""What the agent needs of whatever runs the workloads of its node: local jobs here, CRI containers elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from cedana_sched.model.preemption import WorkloadRef


class RunningWorkload(msgspec.Struct, frozen=True):
    """A workload as CRIU must see it."""

    root_pid: int
    """The first process of the tree, in the agent's PID namespace."""
    freezer: Path
    """Directory of the cgroup (v1 freezer hierarchy or v2) that holds every process of the workload."""
    externals: tuple[str, ...] = ()
    """CRIU's `--external` items: mounts and namespaces that the new incarnation brings along."""
    restore_facts: dict[str, Any] = {}
    """What the runtime wants back in `continue_from`, as JSON values; it travels in the manifest."""
    restored: bool = False
    """Whether it was continued from a snapshot."""


class WorkloadRuntime(Protocol):
    """Every call is idempotent: the state that it asks for may be there already, after a restart of the agent."""

    async def running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Where its processes are; None when it has none (any more)."""
        ...

    async def continue_from(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """Continue the processes in `images` as this workload.

        Raises:
            RetryableError: it was interrupted, and the same call may succeed later; nothing of them runs.
            RestoreError: they did not come back; nothing of them runs.
        """
        ...

    async def start_cold(self, workload: WorkloadRef, why: str | None) -> None:
        """Start the workload from its beginning; `why` is told to its owner when a snapshot was expected."""
        ...

    async def give_up(self, workload: WorkloadRef, why: str) -> None:
        """Fail a workload that was waiting to be started."""
        ...
