"""The scenario over an engine that tells a recorded story, with programs that are real but tiny."""

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from rich.console import Console

from cedana_sched.local.views import Change, EventView, JobView, Submission
from demo.board import Board
from demo.casting import Cast, choose
from demo.scenario import QUOTAS, DemoError, Play
from demo.screen import ProgressOf, Screen, shown
from workloads.catalog import WORKLOADS
from workloads.comparing import differences
from workloads.packages import PackageError
from workloads.reference import RunError
from workloads.workload import Command, Progress, Size, Workload


class Echo(Workload):
    """Writes one line; `script` may be changed to fail."""

    seconds: ClassVar = dict.fromkeys(Size, 0.01)
    results = ("result",)

    def __init__(self, name: str, script: str = "echo 42 > result") -> None:
        self.name = name
        self.title = f"the program {name}"
        self.script = script

    def write_inputs(self, directory: Path, size: Size) -> None: ...

    def command(self, directory: Path) -> Command:
        return Command(("sh", "-c", self.script), directory)

    def progress(self, directory: Path) -> Progress:
        return Progress(int((directory / "result").exists()), 1, "lines")

    def check(self, directory: Path, reference: Path) -> list[str]:
        return differences(directory, reference, self.results)


class StoryEngine:
    """Tells the recorded story: up to the training's submission, and on from there. Runs each command once."""

    def __init__(self, story: list[JobView], *, dies: bool = False) -> None:
        self.submissions: list[Submission] = []
        self._story = story
        self._dies = dies
        self._training_came = asyncio.Event()

    async def submit(self, submission: Submission) -> JobView:
        self.submissions.append(submission)
        process = await asyncio.create_subprocess_exec(*submission.argv, cwd=submission.cwd)
        try:
            await process.wait()
        finally:  # also when the play is cancelled: its transport is open until then
            await process.wait()
        if len(self.submissions) > 1:
            self._training_came.set()
        return self._story[0]

    async def watch(self) -> AsyncGenerator[Change, None]:
        yield Change(event=EventView(0.0, "Started", "the engine runs"))
        yield Change(job=msgspec.structs.replace(self._story[0], name="somebody-else"))
        for job in self._story[:2]:
            yield Change(job=job)
        await self._training_came.wait()
        if not self._dies:
            for job in self._story[2:]:
                yield Change(job=job)


@contextlib.contextmanager
def unseen(board: Board, progress_of: ProgressOf) -> Iterator[Screen]:
    with shown(Console(file=io.StringIO()), board, QUOTAS, progress_of) as screen:
        yield screen


def a_play(directory: Path, simulation: Workload | None = None) -> Play:
    play = Play(Cast(simulation or Echo("gromacs"), Echo("xgboost")), directory, patience_seconds=0.01)
    play.prepare(Size.BRIEF)
    return play


async def test_both_jobs_are_submitted_and_the_results_compared(story: list[JobView], tmp_path: Path) -> None:
    engine = StoryEngine(story)
    account = await a_play(tmp_path).perform(engine, unseen)
    assert [(s.name, s.group, s.cpus, s.id) for s in engine.submissions] == [
        ("gromacs", "bio", "2", "gromacs"),
        ("xgboost", "ml", "1", "xgboost"),
    ]
    assert account.succeeded
    assert account.simulation.phase == "Succeeded"
    assert account.reference_seconds > 0


async def test_another_result_is_found(story: list[JobView], tmp_path: Path) -> None:
    differing = Echo("gromacs", 'case "$PWD" in *reference) echo 42 > result ;; *) echo 43 > result ;; esac')
    account = await a_play(tmp_path, differing).perform(StoryEngine(story), unseen)
    assert account.differences == ("result: differs from byte 1 on",)
    assert not account.succeeded


async def test_an_engine_that_goes_away_is_an_error(story: list[JobView], tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await a_play(tmp_path).perform(StoryEngine(story, dies=True), unseen)
    assert caught.group_contains(DemoError, match="the engine stopped")


async def test_a_reference_run_that_fails_is_an_error(story: list[JobView], tmp_path: Path) -> None:
    failing = Echo("gromacs", "echo no water >&2; exit 3")
    with pytest.raises(ExceptionGroup) as caught:
        await a_play(tmp_path, failing).perform(StoryEngine(story), unseen)
    error = caught.value.exceptions[0]
    assert isinstance(error, RunError)
    assert error.evidence == ("no water",)


def test_two_jobs_of_the_same_program_have_names_of_their_own(tmp_path: Path) -> None:
    same = Echo("numpy")
    play = Play(Cast(same, same), tmp_path)
    assert (play.simulation.name, play.training.name) == ("numpy", "numpy-ml")


class Absent(Echo):
    """A program whose package is not to be had."""

    def missing(self) -> tuple[str, ...]:
        return (self.name,)

    def install(self) -> None:
        raise PackageError(self.name, "apt-get could not install this Debian package")


def test_what_cannot_be_installed_is_named_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "gromacs", Absent("gromacs"))
    monkeypatch.setitem(WORKLOADS, "xgboost", Echo("xgboost"))
    monkeypatch.setitem(WORKLOADS, "numpy", Echo("numpy"))
    said: list[str] = []
    cast = choose(said.append)
    assert (cast.simulation.name, cast.training.name) == ("numpy", "xgboost")
    assert said == [
        "installing gromacs for the program gromacs",
        "gromacs: apt-get could not install this Debian package; the program numpy stands in for the program gromacs",
    ]


def test_without_even_the_stand_in_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gromacs", "xgboost", "numpy"):
        monkeypatch.setitem(WORKLOADS, name, Absent(name))
    with pytest.raises(PackageError, match="numpy: apt-get"):
        choose(lambda _: None)
