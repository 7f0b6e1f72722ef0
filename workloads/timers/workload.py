"""Periodic timers of every kind: none may be left disarmed, and no event may be counted twice."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from workloads.compiling import compile_program
from workloads.inputs import cached_inputs, lay_inputs
from workloads.packages import Packages
from workloads.sequences import sequence_faults
from workloads.workload import Command, Progress, Size, Workload, size_of

_SOURCE = Path(__file__).parent / "timers.c"
_KINDS = ("timerfd", "itimer", "posix")
_EVENTS = {Size.BRIEF: 100, Size.TEST: 400, Size.DEMO: 2000}


class Timers(Workload):
    """A timerfd, an interval timer and a POSIX timer, every 10 ms, waited for with epoll."""

    name = "timers"
    title = "periodic timers"
    seconds: ClassVar = {Size.BRIEF: 1, Size.TEST: 4, Size.DEMO: 20}
    packages = Packages(debian=("gcc", "libc6-dev"))

    def write_inputs(self, directory: Path, size: Size) -> None:  # noqa: ARG002 - one program for all sizes
        lay_inputs(cached_inputs("timers", _SOURCE.read_bytes(), _compile), directory)

    def command(self, directory: Path) -> Command:
        return Command((str(directory / "timers"), str(_EVENTS[size_of(directory)])), directory)

    def progress(self, directory: Path) -> Progress:
        """As far as the slowest timer; the log is small enough to be read as a whole."""
        lines = _lines(directory / "events.log")
        done = min(sum(1 for words in lines if words[0] == kind) for kind in _KINDS)
        return Progress(done, _EVENTS[size_of(directory)], "events")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Every timer has counted to the end without gap or repetition."""
        lines = _lines(directory / "events.log")
        total = _EVENTS[size_of(reference)]
        faults = []
        for kind in _KINDS:
            faults += sequence_faults(kind, [int(words[1]) for words in lines if words[0] == kind], total)
        return faults


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _compile(draft: Path) -> None:
    compile_program("gcc", "gcc", _SOURCE, draft / "timers")
