"""The frozen workloads and their checkpoints: freeze, thaw and kill of one workload never overlap.

The agent's orders for one checkpoint may overtake one another: an abort arrives while the freeze is in progress, a
freeze arrives twice. Here they are serialized, and a freeze of a checkpoint that has ended is rejected. Nothing of this
needs to persist: after a restart of the agent the state is empty, and a thaw is performed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from weakref import WeakValueDictionary

from cedana_sched.agent.workload_runtime import RunningWorkload, WorkloadRuntime
from cedana_sched.model.errors import RetryableError, SnapshotError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer

Tree = tuple[str, int]
"""A container's name, and its first process."""

CHECKPOINTS_REMEMBERED = 10_000
"""Number of ended checkpoints to remember; a freeze that arrives after so many others is not recognised as late."""


class CheckpointOverError(SnapshotError):
    """The checkpoint was cancelled, or has ended: nothing is frozen for it any more."""


class WorkloadRestartedError(SnapshotError, RetryableError):
    """A container exited, or was started, during the freeze: the workload runs on with its present containers."""


class FrozenWorkloads:
    """The frozen workloads of one node."""

    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._frozen_by: dict[str, str] = {}
        self._frozen_at: dict[str, float] = {}
        self._frozen_as: dict[str, frozenset[Tree]] = {}
        self._over: dict[str, None] = {}
        self._to_end: set[str] = set()
        """Checkpoints that are committed, and whose workloads must not run on."""

    def freeze_time_of(self, checkpoint_uid: str) -> float:
        """Return seconds since the epoch; now, if the freeze preceded this agent's start."""
        return self._frozen_at.get(checkpoint_uid, time.time())

    def is_checkpoint_over(self, checkpoint_uid: str) -> bool:
        """Return whether nothing is to be frozen or dumped for the checkpoint any more."""
        return checkpoint_uid in self._over

    def end_checkpoint(self, checkpoint_uid: str) -> None:
        """Reject freezes for this checkpoint from now on."""
        self._over[checkpoint_uid] = None
        while len(self._over) > CHECKPOINTS_REMEMBERED:
            del self._over[next(iter(self._over))]

    async def freeze(self, checkpoint_uid: str, workload: WorkloadRef) -> RunningWorkload | None:
        """Freeze a workload in place; None if it has no processes.

        Raises:
            CheckpointOverError: the checkpoint has ended.
            FreezerError: the workload did not freeze in time, and runs on.
            WorkloadRestartedError: its containers have changed during the freeze, and it runs on.
        """
        async with self._workload_lock(workload):
            if self.is_checkpoint_over(checkpoint_uid):
                raise CheckpointOverError("the checkpoint was cancelled", remedy="begin another one")
            running = await self._runtime.find_running(workload)
            if running is not None:
                began = time.time()
                await asyncio.to_thread(freezer.freeze_together, running.freezer_cgroups)
                await self._refuse_if_restarted(workload, running)
                self._frozen_as[workload.uid] = process_trees_of(running)
                self._frozen_by[workload.uid] = checkpoint_uid
                self._frozen_at.setdefault(checkpoint_uid, began)
            return running

    def has_frozen_processes(self, workload: WorkloadRef, running: RunningWorkload) -> bool:
        """Return whether these are the processes that were frozen; True if the freeze preceded this agent's start."""
        return self._frozen_as.get(workload.uid, process_trees_of(running)) == process_trees_of(running)

    async def _refuse_if_restarted(self, workload: WorkloadRef, running: RunningWorkload) -> None:
        """Thaw and raise if a container was replaced during the freeze.

        An exited container counts as frozen; its successor would run on beside the dump.
        """
        now = await self._runtime.find_running(workload)
        if (
            now is not None
            and process_trees_of(now) == process_trees_of(running)
            and set(now.beside) <= set(running.beside)
        ):
            return
        await asyncio.to_thread(freezer.thaw_together, running.freezer_cgroups)
        raise WorkloadRestartedError(
            f"a container of {workload.name} was being restarted when it was to be frozen",
            remedy="it is tried again with what runs then",
        )

    async def thaw(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Thaw the workload, also if it was to be killed, unless another checkpoint has frozen it meanwhile."""
        self.end_checkpoint(checkpoint_uid)
        async with self._workload_lock(workload):
            if self._frozen_by.get(workload.uid, checkpoint_uid) != checkpoint_uid:
                return
            await self._runtime.undo_kill(checkpoint_uid, workload)
            if running := await self._runtime.find_running(workload):
                await asyncio.to_thread(freezer.thaw_together, running.freezer_cgroups)
            self._forget_freeze(checkpoint_uid, workload)

    def mark_committed(self, checkpoint_uid: str) -> None:
        """Mark the checkpoint as committed, and its workload as to be killed: from now on only an order thaws it."""
        self._to_end.add(checkpoint_uid)

    async def thaw_without_order(self, checkpoint_uid: str, workload: WorkloadRef) -> bool:
        """Thaw the workload without an order; return whether it was thawed.

        It is thawed only if this checkpoint has frozen it, and it is not to be killed. Afterwards nothing is frozen or
        dumped for the checkpoint any more.

        Raises:
            FreezerError: it did not thaw in time.
        """
        async with self._workload_lock(workload):
            if self._frozen_by.get(workload.uid) != checkpoint_uid or checkpoint_uid in self._to_end:
                return False
            self.end_checkpoint(checkpoint_uid)
            if running := await self._runtime.find_running(workload):
                await asyncio.to_thread(freezer.thaw_together, running.freezer_cgroups)
            self._forget_freeze(checkpoint_uid, workload)
            return True

    async def kill(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """Kill the workload without letting it execute another instruction; see `WorkloadRuntime.kill_frozen`.

        Raises:
            FreezerError: some process did not exit in time.
        """
        self.end_checkpoint(checkpoint_uid)
        async with self._workload_lock(workload):
            is_dead = await self._runtime.kill_frozen(checkpoint_uid, workload, insist=insist)
            self._forget_freeze(checkpoint_uid, workload)
            return is_dead

    def _workload_lock(self, workload: WorkloadRef) -> asyncio.Lock:
        return self._turns.setdefault(workload.uid, asyncio.Lock())

    def _forget_freeze(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        self._frozen_at.pop(checkpoint_uid, None)
        self._to_end.discard(checkpoint_uid)
        if self._frozen_by.get(workload.uid, checkpoint_uid) == checkpoint_uid:
            self._frozen_as.pop(workload.uid, None)
        if self._frozen_by.get(workload.uid) == checkpoint_uid:
            del self._frozen_by[workload.uid]


def process_trees_of(running: RunningWorkload) -> frozenset[Tree]:
    """Return the process trees of a workload."""
    return frozenset((container.name, container.root_pid) for container in running.containers)


def resident_bytes_of(running: RunningWorkload) -> int:
    """Return the bytes that its processes have in memory; shared pages count for each process."""
    pages = 0
    for pid in (pid for cgroup in running.freezer_cgroups for pid in freezer.pids_in_cgroup(cgroup)):
        with contextlib.suppress(OSError):  # it exited meanwhile
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
