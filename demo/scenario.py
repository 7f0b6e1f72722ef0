"""What happens in the demo, and when.

Two groups own one processor each and share one cohort. *bio*'s simulation asks for two: it borrows *ml*'s. A few
seconds later *ml*'s training arrives, and fair share says that *bio* must give back: the simulation is frozen,
streamed, committed and killed, the training runs, and then the simulation continues where it stopped. Beside it,
outside the engine, the same input runs without interruption: the result to compare with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cedana_sched.local.views import Change, JobView, Submission
from demo.account import Account, Result
from demo.board import ENDED, Board
from demo.casting import Cast
from demo.reference import run_reference
from demo.screen import ProgressOf, Screen
from workloads.comparing import digest
from workloads.workload import Progress, Size, Workload

QUOTAS = {"bio": 1.0, "ml": 1.0}
"""Processors that each group owns."""

TRAINING_COMES_AFTER_SECONDS = 7.0
"""How long the simulation has the machine to itself."""

CONFIGURATION = """\
[capacity]
cpu = 2
memory = "2Gi"

[fairSharing]

[[groups]]
name = "bio"
namespace = "bio"
nominalQuota = {cpu = 1, memory = "1Gi"}
preemption = {reclaimWithinCohort = "Any"}

[[groups]]
name = "ml"
namespace = "ml"
nominalQuota = {cpu = 1, memory = "1Gi"}
preemption = {reclaimWithinCohort = "Any"}
"""

ShowBoard = Callable[[Board, ProgressOf], AbstractContextManager[Screen]]


class Engine(Protocol):
    """What the demo needs of the engine: `cedana_sched.local.client.EngineClient` has it."""

    async def submit(self, submission: Submission) -> JobView: ...

    def watch(self) -> AsyncGenerator[Change, None]: ...


class DemoError(Exception):
    """The demo could not be played to its end; the text says why."""


@dataclass(frozen=True)
class Part:
    """One job of the play."""

    name: str
    group: str
    cpus: str
    workload: Workload
    directory: Path

    def submission(self) -> Submission:
        """The job as a person would submit it; its output stays beside its results."""
        command = self.workload.command(self.directory)
        return Submission(
            argv=command.argv,
            group=self.group,
            name=self.name,
            id=self.name,
            cpus=self.cpus,
            env=command.environment,
            cwd=str(command.directory),
            stdout=str(self.directory / "output.log"),
            stderr=str(self.directory / "output.log"),
        )

    def progress(self) -> Progress:
        return self.workload.progress(self.directory)


class Play:
    """One performance, in a directory of its own."""

    def __init__(self, cast: Cast, directory: Path, patience_seconds: float = TRAINING_COMES_AFTER_SECONDS) -> None:
        second = cast.training.name if cast.training is not cast.simulation else f"{cast.training.name}-ml"
        self.simulation = Part(cast.simulation.name, "bio", "2", cast.simulation, directory / "simulation")
        self.training = Part(second, "ml", "1", cast.training, directory / "training")
        self._reference = directory / "reference"
        self._patience_seconds = patience_seconds

    def prepare(self, size: Size = Size.DEMO) -> None:
        """Write the inputs of all three runs."""
        self.simulation.workload.prepare(self.simulation.directory, size)
        self.simulation.workload.prepare(self._reference, size)
        self.training.workload.prepare(self.training.directory, Size.BRIEF if size is Size.BRIEF else Size.TEST)

    async def perform(self, engine: Engine, show: ShowBoard) -> Account:
        """Submit, watch to the end, and compare.

        Raises:
            DemoError: the engine went away before the jobs had ended.
            RunError: the uninterrupted run failed.
        """
        board = Board(time.time())
        with show(board, self.progress_of) as screen:
            async with asyncio.TaskGroup() as tasks:
                alone = tasks.create_task(run_reference(self.simulation.workload, self._reference))
                await engine.submit(self.simulation.submission())
                await self._follow(engine, board, screen, tasks)
        return await asyncio.to_thread(self._account, board, alone.result())

    def progress_of(self, name: str) -> Progress | None:
        """How far the job of that name has come."""
        for part in (self.simulation, self.training):
            if part.name == name:
                return part.progress()
        return None

    async def _follow(self, engine: Engine, board: Board, screen: Screen, tasks: asyncio.TaskGroup) -> None:
        arrival: asyncio.Task[None] | None = None
        async with aclosing(engine.watch()) as changes:
            async for change in changes:
                if change.job is None or change.job.name not in {self.simulation.name, self.training.name}:
                    continue
                screen.tell(board.put(change.job, time.time()))
                if arrival is None and change.job.phase in {"Running", *ENDED}:
                    arrival = tasks.create_task(self._arrive(engine))
                if len(board.jobs) > 1 and board.is_terminal:
                    return
        raise DemoError("the engine stopped before the jobs had ended")

    async def _arrive(self, engine: Engine) -> None:
        await asyncio.sleep(self._patience_seconds)
        await engine.submit(self.training.submission())

    def _account(self, board: Board, reference_seconds: float) -> Account:
        workload, ours = self.simulation.workload, self.simulation.directory
        return Account(
            simulation=board.jobs[self.simulation.name],
            training=board.jobs[self.training.name],
            seconds=time.time() - board.began,
            reference_seconds=reference_seconds,
            results=tuple(
                Result(name, _digest(ours / name), _digest(self._reference / name)) for name in workload.results
            ),
            differences=tuple(workload.check(ours, self._reference)),
        )


def _digest(path: Path) -> str | None:
    return digest(path) if path.is_file() else None
