"""A given amount of half-compressible memory that ticks, rewrites and verifies itself: `hog.c` says how to talk to it.

The bench starts it by `hog_command` with sizes of its own; as a workload it holds 64 MiB for a while.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from workloads.comparing import tail
from workloads.compiling import compile_program
from workloads.inputs import cached_inputs
from workloads.packages import Packages
from workloads.sequences import sequence_faults
from workloads.workload import Command, Progress, Size, Workload, size_of

LOG_FILE = "ticks.log"
_SOURCE = Path(__file__).parent / "hog.c"
_MEBIBYTES = 64
_TICKS = {Size.BRIEF: 100, Size.TEST: 400, Size.DEMO: 2000}
_TAIL_BYTES = 256

Pattern = Literal["scattered", "contiguous"]


def hog_command(
    directory: Path, mebibytes: int, *, ticks: int = 0, percent: int = 5, pattern: Pattern = "scattered"
) -> Command:
    """Say how to hold `mebibytes` of memory, in `directory`.

    Args:
        directory: where `ticks.log` is written.
        mebibytes: how much memory to fill.
        ticks: how many times 10 ms to run; 0 means until SIGTERM.
        percent: how many of the pages SIGUSR1 rewrites.
        pattern: whether those lie all over the memory or together.
    """
    program = cached_inputs("memory", _SOURCE.read_bytes(), _compile) / "hog"
    return Command((str(program), str(mebibytes), str(ticks), str(percent), pattern), directory)


class Memory(Workload):
    """64 MiB; every byte is verified at the end."""

    name = "memory"
    title = "memory that verifies itself"
    seconds: ClassVar = {Size.BRIEF: 1.2, Size.TEST: 4.2, Size.DEMO: 20.2}
    packages = Packages(debian=("gcc", "libc6-dev"))

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: every page follows from its number."""

    def command(self, directory: Path) -> Command:
        return hog_command(directory, _MEBIBYTES, ticks=_TICKS[size_of(directory)])

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / LOG_FILE, _TAIL_BYTES).splitlines()
        ticks = [int(line.split()[1]) for line in lines if line.startswith("tick ")]
        return Progress(ticks[-1] if ticks else 0, _TICKS[size_of(directory)], "ticks")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """No tick is missing, no page is damaged, and all were verified at the end."""
        log = directory / LOG_FILE
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        faults = [f"page {words[1]} is damaged" for words in lines if words[0] == "damaged"]
        if not lines or lines[-1][0] != "verified":
            faults.append("the memory was not verified at the end")
        ticks = [int(words[1]) for words in lines if words[0] == "tick"]
        return faults + sequence_faults("ticks", ticks, _TICKS[size_of(reference)])


def _compile(draft: Path) -> None:
    compile_program("gcc", "gcc", _SOURCE, draft / "hog")
