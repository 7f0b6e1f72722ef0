"""The scheduler under the tests, as its adapter's author lets them play it: fake, in milliseconds, or the real one."""

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


class Power(StrEnum):
    """What not every scheduler can do. A stage whose scheduler cannot says so in `lacks`, with the reason."""

    HOLD = "an eviction waits for its release"
    CANCELLATION = "the scheduler may take a preemption back"
    KEEPING = "a victim can be kept running on request (`Verdict.KEEP_RUNNING`)"
    DEADLINE = "the scheduler itself may name the moment at which it kills, whatever is held"
    GANGS = "several workloads may live and end together only"
    RETURN = "who was evicted comes back without anybody's doing"
    STARTS = "the adapter itself tells of starts and ends; for pods others do"


@dataclass(frozen=True)
class RunningWorkload:
    """What the stage has started: the adapter must call it so. `identity` is None where it is not opted in."""

    workload: WorkloadRef
    identity: Identity | None

    @property
    def uid(self) -> str:
        return self.workload.uid

    def __str__(self) -> str:
        return f"{self.workload.namespace}/{self.workload.name} (uid {self.workload.uid})"


class Stage(ABC):
    """One scheduler. It outlives its adapters; each test has a new one.

    A method may take as long as its scheduler does: the tests wait for `patience_seconds` only where something could
    fail to happen because of the adapter.
    """

    lacks: ClassVar[Mapping[Power, str]] = {}
    """Powers that this scheduler has not, and why. Where the opposite can be tested, it is."""
    patience_seconds: float = 10.0
    """How long to wait for what must happen."""

    @abstractmethod
    def adapter(self) -> AbstractAsyncContextManager[Adapter]:
        """A new adapter that works, until it is left as a killed process leaves it. Entered again, it is a restart."""

    @abstractmethod
    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        """Run a job of so many workloads, and return when they run and the adapter can know it.

        What was started before may be ended for it.

        Args:
            protected: whether they are opted in.
            members: more than one: a gang (`Power.GANGS`).
            deadline_seconds: of the CheckpointPolicy that goes for them.
        """

    @abstractmethod
    async def preempt(self, victim: RunningWorkload) -> None:
        """Make the scheduler decide that the victim's job must go, and return when it has."""

    @abstractmethod
    async def finish(self, victim: RunningWorkload) -> None:
        """Let the workload end by itself, well."""

    @abstractmethod
    async def give_up(self, workload: RunningWorkload) -> None:
        """Have its owner cancel or delete the job that it is part of, held or not; return when that is accepted."""

    @abstractmethod
    async def is_evicted(self, victim: RunningWorkload) -> bool:
        """Whether the scheduler has ended it, for whomever."""

    @abstractmethod
    async def evicted(self, victim: RunningWorkload) -> None:
        """Wait until the scheduler has ended it, for ever if it does not."""

    @abstractmethod
    async def settle(self) -> None:
        """Return when the adapter must have told whatever it makes of all that has happened."""

    @abstractmethod
    async def repeat(self) -> None:
        """Have the adapter told again all that is so, as after a broken connection."""

    @abstractmethod
    def unreachable(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile nothing that the adapter wants to tell the scheduler arrives."""

    # -- beside the contract: what the coordinator does, where this scheduler's evictions depend on it

    async def holding(self, signal: Signal) -> None:  # noqa: B027 - most need nothing
        """The coordinator holds: on Kubernetes the PreemptionHold stands from now on. Told again, it does nothing."""

    async def released(self, release: Release) -> None:  # noqa: B027 - the same
        """The coordinator has decided, and is about to call `release`. Told again, it does nothing."""

    # -- to be written for the powers that are not lacking

    async def take_back(self, victim: RunningWorkload) -> None:
        """`Power.CANCELLATION`: the scheduler does not need the victim's place any more."""
        raise NotImplementedError

    async def preempt_by(self, victim: RunningWorkload) -> float:
        """`Power.DEADLINE`: preempt, and return the moment at which it is killed (seconds since the epoch)."""
        raise NotImplementedError

    async def returned(self, victim: RunningWorkload) -> RunningWorkload:
        """`Power.RETURN`: make room for who was evicted, and wait until it runs again."""
        raise NotImplementedError

    async def place(self) -> RunningWorkload:
        """`Power.STARTS`: give a protected workload its place, where it waits to be told how to run."""
        raise NotImplementedError


@asynccontextmanager
async def beside(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run the works of an adapter (`ClusterAdapter.run`, mirrors) as long as the body lasts.

    Raises:
        Exception: what one of them has ended with.
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


async def loop_turns(count: int = 100) -> None:
    """Let everything go on that waits for nothing: what `Stage.settle` is for a fake scheduler."""
    for _ in range(count):
        await asyncio.sleep(0)
