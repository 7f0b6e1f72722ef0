"""Threads, a child, shared memory, open and nameless files, a held lock: no number is lost or said twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from workloads.comparing import differences, tail
from workloads.sequences import sequence_faults
from workloads.threads.program import THREADS
from workloads.workload import Command, Progress, Size, Workload, size_of

_PROGRAM = Path(__file__).parent / "program.py"
_STEPS = {Size.BRIEF: 200, Size.TEST: 900, Size.DEMO: 4500}
_TAIL_BYTES = 64


class Threads(Workload):
    """Four threads and a forked child that count and write what they count."""

    name = "threads"
    title = "threads, shared memory, locks and open files"
    seconds: ClassVar = {Size.BRIEF: 1, Size.TEST: 4, Size.DEMO: 20}

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: the program counts."""

    def command(self, directory: Path) -> Command:
        return Command((sys.executable, str(_PROGRAM), str(_STEPS[size_of(directory)])), directory)

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / "thread-0.log", _TAIL_BYTES).splitlines()
        return Progress(int(lines[-1]) if lines else 0, _STEPS[size_of(directory)], "numbers")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Every log counts without gap or repetition; the summary is that of the uninterrupted run."""
        faults = differences(directory, reference, ("summary.json",))
        total = _STEPS[size_of(reference)]
        for name in (*(f"thread-{index}.log" for index in range(THREADS)), "child.log"):
            faults += sequence_faults(name, [int(line) for line in _lines(directory / name)], total)
        shared = [line.split() for line in _lines(directory / "shared.log")]
        for index in range(THREADS):
            said = [int(number) for thread, number in shared if thread == str(index)]
            faults += sequence_faults(f"shared.log, thread {index}", said, total)
        return faults


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
