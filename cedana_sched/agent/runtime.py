"""What the agent needs of whatever runs the workloads of its node: local jobs here, CRI containers elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from cedana_sched.model.preemption import WorkloadRef


class RunningContainer(msgspec.Struct, frozen=True):
    """One process tree of a workload as CRIU must see it: a container of a pod, or the whole of a local job."""

    root_pid: int
    """The first process of the tree, in the agent's PID namespace."""
    freezer: Path
    """Directory of the cgroup (v1 freezer hierarchy or v2) that holds every process of the tree, and no other."""
    name: str = ""
    """The folder of its streams in the snapshot; empty where a workload is one tree, whose streams lie at the top."""
    externals: tuple[str, ...] = ()
    """CRIU's `--external` items: mounts and namespaces that the new incarnation brings along."""
    root: Path = Path("/")
    """Where the tree's root filesystem is mounted, as CRIU sees it (`--root`)."""
    changes: Path | None = None
    """The upper directory of an overlay root: travels as `rootfs.tar`. None where the files stay where they are."""
    notes: dict[str, str] = {}
    """Small texts that become streams beside CRIU's images, by name: what the restoring runtime reads there."""
    ext_unix_sk: bool = False
    """Whether unix sockets may be connected to processes outside the tree; restored, they are connected to nothing."""
    manage_cgroups: str = "ignore"
    """CRIU's mode of writing down the tree's cgroups."""
    saves_shared_memory: bool = True
    """Whether the tree's /dev/shm is its own, and so part of CRIU's images."""
    continued: bool = False
    """Whether these very processes were continued from a snapshot."""


class RunningWorkload(msgspec.Struct, frozen=True):
    """A workload's processes. Its containers are frozen together, and become one snapshot or none."""

    containers: tuple[RunningContainer, ...]
    volumes: dict[str, Path] = {}
    """Folders that die with the workload, by name: each travels as `volumes/NAME.tar`."""
    restore_facts: dict[str, Any] = {}
    """What the runtime wants back in `continue_from`, as JSON values; it travels in the manifest."""
    restored: bool = False
    """Whether it was continued from a snapshot."""
    beside: tuple[Path, ...] = ()
    """Cgroups of what runs in the workload and is not part of it: it is frozen too, because it reaches its files."""

    @property
    def freezers(self) -> tuple[Path, ...]:
        """Of all that is frozen together."""
        return (*(container.freezer for container in self.containers), *self.beside)


class WorkloadRuntime(Protocol):
    """Every call is idempotent: the state that it asks for may be there already, after a restart of the agent."""

    async def running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Where its processes are; None when it has none (any more), or `end_frozen` was called for it."""
        ...

    async def end_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """End a frozen workload whose snapshot is committed: none of its processes executes another instruction.

        It may return False while they are still there, frozen, when their owner must say first that they may go (a pod
        is deleted): the runtime kills them then, or when it is called again to `insist`, and at no other time. Whoever
        asks for them meanwhile is told that there are none.

        Raises:
            FreezerError: some process did not go in time.
        """
        ...

    async def spare(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Take `end_frozen` of this checkpoint back, if it is not too late: its processes are there again, frozen."""
        ...

    async def continue_from(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """Continue the processes in `images` as this workload.

        `images` holds the snapshot's streams as files, those of a container in a folder of its name. It is removed
        when the call has returned, so whatever is still needed must have been taken or moved by then.

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


@runtime_checkable
class KnowsEnds(Protocol):
    """Optional: a workload's processes are gone a while before its owner knows how they have ended."""

    async def wait_ended(self, workload: WorkloadRef) -> None:
        """Return when its owner knows; perhaps never, as for one that is started again."""
        ...


@runtime_checkable
class KnowsBeginnings(Protocol):
    """Optional: a workload may begin again under its uid. What was ordered for one beginning is not for the next."""

    def returns_as(self, workload: WorkloadRef, restore_uid: str) -> None:
        """Called right before `continue_from`, `start_cold` and `give_up`, which are part of this return."""
        ...


@runtime_checkable
class KnowsPeers(Protocol):
    """Optional: workloads have addresses, which they do not keep when they come back."""

    async def peer(self, workload: WorkloadRef, addresses: Collection[str]) -> str | None:
        """The name of another workload of the same owner that is at one of these addresses; None when there is none.

        Raises:
            CedanaSchedError: that cannot be told now.
        """
        ...


@runtime_checkable
class ShowsStaging(Protocol):
    """Optional: who waits for a workload is shown how much of its snapshot has come."""

    def staging(self, workload: WorkloadRef, done_bytes: int, total_bytes: int) -> None:
        """Called often, from any thread: must not take long."""
        ...
