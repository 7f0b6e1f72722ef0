"""Who is frozen, and for which checkpoint: freezing, thawing and killing of one workload never overlap.

The agent's orders for one checkpoint may overtake one another: an abort comes while the freeze is still under way,
a freeze arrives twice. Here they take turns, and a freeze of a checkpoint that is over is refused. Nothing of it must
survive: after a restart of the agent nobody is remembered, and a thaw is obeyed.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakValueDictionary

from cedana_sched.agent.runtime import RunningWorkload, WorkloadRuntime
from cedana_sched.model.errors import SnapshotError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer

CHECKPOINTS_REMEMBERED = 10_000
"""Of those that are over; a freeze that comes later than so many others is not recognised as late."""


class CheckpointOverError(SnapshotError):
    """The checkpoint was called off, or has ended: nothing is frozen for it any more."""


class FrozenWorkloads:
    """The frozen workloads of one node."""

    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._frozen_by: dict[str, str] = {}
        self._frozen_at: dict[str, float] = {}
        self._over: dict[str, None] = {}

    def frozen_at(self, checkpoint_uid: str) -> float:
        """Seconds since the epoch; now, if that was before this agent's time."""
        return self._frozen_at.get(checkpoint_uid, time.time())

    def is_over(self, checkpoint_uid: str) -> bool:
        """Whether nothing is to be frozen or dumped for it any more."""
        return checkpoint_uid in self._over

    def close(self, checkpoint_uid: str) -> None:
        """From now on nothing is frozen for this checkpoint."""
        self._over[checkpoint_uid] = None
        while len(self._over) > CHECKPOINTS_REMEMBERED:
            del self._over[next(iter(self._over))]

    async def freeze(self, checkpoint_uid: str, workload: WorkloadRef) -> RunningWorkload | None:
        """Freeze it where it is; None when it has no processes.

        Raises:
            CheckpointOverError: nobody wants that any more.
            FreezerError: it did not freeze in time, and runs on.
        """
        async with self._turn(workload):
            if self.is_over(checkpoint_uid):
                raise CheckpointOverError("the checkpoint was called off", remedy="begin another one")
            running = await self._runtime.running(workload)
            if running is not None:
                began = time.time()
                await asyncio.to_thread(freezer.freeze_together, running.freezers)
                self._frozen_by[workload.uid] = checkpoint_uid
                self._frozen_at.setdefault(checkpoint_uid, began)
            return running

    async def thaw(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """Let it run on, also if it was to end, unless another checkpoint has frozen it meanwhile."""
        self.close(checkpoint_uid)
        async with self._turn(workload):
            if self._frozen_by.get(workload.uid, checkpoint_uid) != checkpoint_uid:
                return
            await self._runtime.spare(checkpoint_uid, workload)
            if running := await self._runtime.running(workload):
                await asyncio.to_thread(freezer.thaw_together, running.freezers)
            self._forget(checkpoint_uid, workload)

    async def kill(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """End it without letting it execute another instruction; see `WorkloadRuntime.end_frozen`.

        Raises:
            FreezerError: some process did not go in time.
        """
        self.close(checkpoint_uid)
        async with self._turn(workload):
            is_dead = await self._runtime.end_frozen(checkpoint_uid, workload, insist=insist)
            self._forget(checkpoint_uid, workload)
            return is_dead

    def _turn(self, workload: WorkloadRef) -> asyncio.Lock:
        return self._turns.setdefault(workload.uid, asyncio.Lock())

    def _forget(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        self._frozen_at.pop(checkpoint_uid, None)
        if self._frozen_by.get(workload.uid) == checkpoint_uid:
            del self._frozen_by[workload.uid]
