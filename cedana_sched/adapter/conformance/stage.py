"""Test driver of a scheduler, written by the adapter's author: for a fake, in milliseconds, or for the real one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from cedana_sched.adapter.contract import Adapter
from cedana_sched.model.identity import Identity
from cedana_sched.model.preemption import Release, Signal, WorkloadRef


class SchedulerCapability(StrEnum):
    """Optional capabilities of a scheduler. A stage lists those its scheduler lacks in `lacks`, with the reason."""

    HOLD = "an eviction waits for its release"
    CANCELLATION = "the scheduler may take a preemption back"
    KEEPING = "a victim can be kept running on request (`Verdict.KEEP_RUNNING`)"
    DEADLINE = "the scheduler itself may name the moment at which it kills, whatever is held"
    GANGS = "several workloads may live and end together only"
    RETURN = "an evicted workload starts again by itself"
    STARTS = "the adapter itself reports starts and ends; for pods, other components do"


@dataclass(frozen=True)
class RunningWorkload:
    """A workload started by the stage, as the adapter must reference it."""

    workload: WorkloadRef
    """As the adapter must report it."""
    identity: Identity | None
    """As the adapter must report it; None without opt-in."""

    @property
    def uid(self) -> str:
        """Return the uid of this incarnation."""
        return self.workload.uid

    def __str__(self) -> str:
        return f"{self.workload.namespace}/{self.workload.name} (uid {self.workload.uid})"


class Stage(ABC):
    """One scheduler, which outlives its adapters; each test has a new one.

    A method may take as long as its scheduler does: the tests apply `patience_seconds` only where the adapter could be
    the cause of a delay.
    """

    lacks: ClassVar[Mapping[SchedulerCapability, str]] = {}
    """Missing capabilities, and why. Where the opposite can be tested, the tests do so."""
    patience_seconds: float = 10.0
    """How long to wait for what must happen."""

    @abstractmethod
    def adapter(self) -> AbstractAsyncContextManager[Adapter]:
        """Return a context with a working adapter, left as by a killed process. Entering again simulates a restart."""

    @abstractmethod
    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        """Run a job of `members` workloads, and return once they run and are visible to the adapter.

        Workloads started earlier may be ended to make room.

        Args:
            protected: whether the workloads are opted in.
            members: more than one: a gang (`SchedulerCapability.GANGS`).
            deadline_seconds: of the CheckpointPolicy of the workloads.
        """

    @abstractmethod
    async def preempt(self, victim: RunningWorkload) -> None:
        """Make the scheduler decide to preempt the victim's job, and return once it has."""

    @abstractmethod
    async def finish(self, victim: RunningWorkload) -> None:
        """Let the workload end by itself, successfully."""

    @abstractmethod
    async def give_up(self, workload: RunningWorkload) -> None:
        """Cancel or delete the workload's job as its owner, held or not; return once that is accepted."""

    @abstractmethod
    async def is_evicted(self, victim: RunningWorkload) -> bool:
        """Return whether the scheduler has ended the workload, for any reason."""

    @abstractmethod
    async def wait_until_evicted(self, victim: RunningWorkload) -> None:
        """Wait until the scheduler has ended the workload, without limit."""

    @abstractmethod
    async def wait_until_reported(self) -> None:
        """Return once the adapter must have reported everything that has happened."""

    @abstractmethod
    async def repeat_current_state(self) -> None:
        """Repeat the current state to the adapter, as after a broken connection."""

    @abstractmethod
    def scheduler_outage(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the adapter's calls to the scheduler fail."""

    # -- coordinator side effects on which this scheduler's evictions depend

    async def on_hold_created(self, signal: Signal) -> None:  # noqa: B027 - most stages need none
        """Record that the coordinator holds: on Kubernetes the PreemptionHold exists from now on. Idempotent."""

    async def on_release_decided(self, release: Release) -> None:  # noqa: B027 - most stages need none
        """Record that the coordinator has decided, and is about to call `release`. Idempotent."""

    # -- to implement for capabilities not in `lacks`

    async def take_back(self, victim: RunningWorkload) -> None:
        """`SchedulerCapability.CANCELLATION`: withdraw the preemption of the victim."""
        raise NotImplementedError

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        """`SchedulerCapability.DEADLINE`: preempt; return when the victim is killed, in seconds since the epoch."""
        raise NotImplementedError

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        """`SchedulerCapability.RETURN`: make room for the evicted workload; wait until its next incarnation runs."""
        raise NotImplementedError

    async def bind_workload(self) -> RunningWorkload:
        """`SchedulerCapability.STARTS`: bind a protected workload, which then waits for its start decision."""
        raise NotImplementedError


@asynccontextmanager
async def running_beside(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run an adapter's background tasks (`ClusterAdapter.run`, informers) for the duration of the block.

    Raises:
        Exception: the error of a failed task.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


async def yield_to_loop(count: int = 100) -> None:
    """Yield to the event loop `count` times: an implementation of `Stage.wait_until_reported` for a fake scheduler."""
    for _ in range(count):
        await asyncio.sleep(0)
