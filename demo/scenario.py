"""The demo: a training preempts a simulation, which is restored afterwards, with bit-identical results.

Two groups have a quota of one processor each and share one cohort. *bio*'s simulation requests two, and borrows *ml*'s
processor. A few seconds later *ml*'s training is submitted, and fair sharing reclaims the processor: the simulation is
frozen, dumped to the store, committed and killed; the training runs; then the simulation is restored. Meanwhile, the
same input runs without interruption outside the engine, as the reference for the results.
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
"""Each group's nominal quota of processors."""

TRAINING_COMES_AFTER_SECONDS = 7.0
"""Delay between the start of the simulation and the submission of the training."""

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
    """The engine's client, such as `cedana_sched.local.client.EngineClient`."""

    async def submit(self, submission: Submission) -> JobView: ...

    def watch(self) -> AsyncGenerator[Change, None]: ...


class DemoError(Exception):
    """The demo could not be completed; the message has the reason."""


@dataclass(frozen=True)
class Part:
    """One job of the scenario."""

    name: str
    group: str
    cpus: str
    workload: Workload
    directory: Path

    def submission(self) -> Submission:
        """Return the job's submission; the output is written beside the results."""
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
    """One run of the scenario, in a directory of its own."""

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
        """Submit the jobs, watch them to their end, and compare the results.

        Raises:
            DemoError: the engine stopped before the jobs had ended.
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
        """Return the progress of a job by name; None for an unknown job."""
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
