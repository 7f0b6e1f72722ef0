"""The agent's interface to the runtime of its node's workloads: local jobs, or CRI containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from cedana_sched.model.policy import OnVolumeChange
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.file_change_rules import OnChange


class Refusal(msgspec.Struct, frozen=True):
    """Why no snapshot is made of a container, with the remedy."""

    why: str
    remedy: str


class RunningContainer(msgspec.Struct, frozen=True):
    """One process tree of a workload as CRIU must see it: a container of a pod, or a whole local job."""

    root_pid: int
    """The first process of the tree, in the agent's PID namespace."""
    freezer: Path
    """Directory of the cgroup (v1 freezer hierarchy or v2) that holds every process of the tree, and no other."""
    name: str = ""
    """Folder of its streams in the snapshot; empty if the workload is one tree, whose streams are at the top."""
    externals: tuple[str, ...] = ()
    """CRIU's `--external` items: mounts and namespaces that the new incarnation provides."""
    root: Path = Path("/")
    """Mount point of the tree's root filesystem, as CRIU sees it (`--root`)."""
    changes: Path | None = None
    """The upper directory of an overlay root: stored as `rootfs.tar`. None if the files stay in place."""
    notes: dict[str, str] = {}
    """Small texts that become streams beside CRIU's images, by name, for the restoring runtime."""
    refusal: Refusal | None = None
    """Set if a snapshot of the frozen container could not be restored."""
    ext_unix_sk: bool = False
    """Whether unix sockets may be connected to processes outside the tree; restored, they are not connected."""
    has_outside_master: bool = False
    """Whether a process outside the tree holds the master of the tree's terminal; restored, it has another one."""
    manage_cgroups: str = "ignore"
    """CRIU's mode of recording the tree's cgroups."""
    saves_shared_memory: bool = True
    """Whether the tree's /dev/shm is its own, and so part of CRIU's images."""
    is_restored: bool = False
    """Whether these very processes were restored from a snapshot."""


class RunningWorkload(msgspec.Struct, frozen=True):
    """A workload's processes. Its containers are frozen together, and become one snapshot or none."""

    containers: tuple[RunningContainer, ...]
    volumes: dict[str, Path] = {}
    """Folders that are deleted with the workload, by name: each is stored as `volumes/NAME.tar`."""
    restore_facts: dict[str, Any] = {}
    """Facts that the runtime needs in `restore`, as JSON values; stored in the manifest."""
    is_restored: bool = False
    """Whether the workload was restored from a snapshot."""
    beside: tuple[Path, ...] = ()
    """Cgroups of processes in the workload that are not part of it: frozen too, because they can reach its files."""

    @property
    def freezer_cgroups(self) -> tuple[Path, ...]:
        """The cgroups of all that is frozen together."""
        return (*(container.freezer for container in self.containers), *self.beside)


class WorkloadRuntime(Protocol):
    """Every call is idempotent: after a restart of the agent, the requested state may exist already."""

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Return the workload's processes; None if it has none (any more), or `kill_frozen` was called for it."""
        ...

    async def kill_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """End a frozen workload whose snapshot is committed: none of its processes executes another instruction.

        It may return False while they still exist, frozen, if their owner must first permit the end (a pod is deleted):
        the runtime kills them then, or when it is called again to `insist`, and at no other time. Meanwhile
        `find_running` returns None.

        Raises:
            FreezerError: some process did not exit in time.
        """
        ...

    async def undo_kill(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Undo `kill_frozen` of this checkpoint, if not too late: `find_running` returns them again, frozen."""
        ...


class SnapshotOrigin(msgspec.Struct, frozen=True):
    """What is known of the workload that a snapshot was taken of. A file outside may have run ahead of the snapshot."""

    ran_on: bool = False
    """Whether it is known to have run on after the snapshot, so that its files may have run ahead."""
    is_same_identity: bool = False
    """Whether it had the identity of the workload that is restored, which alone may rewind its files."""


def on_change_of(policy: OnVolumeChange, origin: SnapshotOrigin) -> OnChange:
    """Return what follows if files outside the snapshot have changed.

    A workload that was killed with its snapshot has changed nothing since: others have. And another workload's files
    are not rewound.
    """
    if not origin.ran_on or (policy is OnVolumeChange.REWIND and not origin.is_same_identity):
        return OnChange.NONE
    return OnChange(policy.value)


UNKNOWN_ORIGIN: Final = SnapshotOrigin()
RUNS_ON: Final = "runs_on"
"""Key of `RunningWorkload.restore_facts`: whether the workload was to run on after the commit."""


class WorkloadRestorer(Protocol):
    """Starts workloads, from snapshots or cold. Every call is idempotent.

    A workload may have several incarnations under its uid; a Restore is for one of them.
    """

    async def restore(
        self,
        restore_uid: str,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin = UNKNOWN_ORIGIN,
        /,
    ) -> None:
        """Restore the processes in `images` as this workload.

        `images` holds the snapshot's streams as files, those of a container in a folder of its name. It is removed when
        the call has returned, so whatever is still needed must have been read or moved by then.

        Raises:
            RetryableError: it was interrupted, and the same call may succeed later; none of the processes runs.
            FilesChangedError: they were not restored because of files that have changed since the snapshot.
            RestoreError: they were not restored; none of them runs.
        """
        ...

    async def describe_changed_files(self, workload: WorkloadRef, /) -> tuple[str, ...]:
        """Return notes on files that had changed since the snapshot of a restored workload: bounded texts."""
        ...

    async def start_cold(self, restore_uid: str, workload: WorkloadRef, why: str | None) -> None:
        """Start the workload cold; `why` is reported to its owner if a snapshot was expected."""
        ...

    async def fail_workload(self, restore_uid: str, workload: WorkloadRef, why: str) -> None:
        """Fail a workload that was waiting to be started."""
        ...
