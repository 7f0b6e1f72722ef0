"""What every workload offers: packages, inputs, a command line, progress, and a check against another run.

The demo and the integration tests hold a `Workload` and nothing else; each folder beside this file implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from workloads.packages import NO_PACKAGES, Packages

_SIZE_FILE = "size"


class PrepareError(Exception):
    """The inputs of a run could not be written where they were wanted; the text says why and what to do."""


class Size(StrEnum):
    """How long a run is meant to take on two ordinary cores."""

    BRIEF = "brief"
    """One to three seconds: does the workload work at all?"""
    TEST = "test"
    """Four to eight seconds: long enough to be preempted three times."""
    DEMO = "demo"
    """Long enough to watch; `Workload.seconds` says how long."""


@dataclass(frozen=True)
class Command:
    """How to start a workload: arguments, working directory, and variables to add to the environment."""

    argv: tuple[str, ...]
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a run has come; `done` equals `total` when its last result is written."""

    done: int
    total: int
    unit: str

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0


class Workload(ABC):
    """One real program. A run lives in a directory of its own, which holds its inputs and its results."""

    name: str
    """Short and stable: what a person names on a command line."""
    title: str
    """What the program does, in a few words."""
    seconds: ClassVar[Mapping[Size, float]]
    """About how long an uninterrupted run takes, in seconds, on one ordinary core."""
    results: ClassVar[tuple[str, ...]] = ()
    """Files that must be the same bits in every run; empty where `check` judges by other means."""
    packages: ClassVar[Packages] = NO_PACKAGES

    def missing(self) -> tuple[str, ...]:
        """Return the packages that `install` would fetch, by name; empty when the workload can run now."""
        return self.packages.missing()

    def install(self) -> None:
        """Fetch what is missing, quietly.

        Raises:
            PackageError: naming the package that could not be installed, and what the installer said.
        """
        self.packages.install()

    def prepare(self, directory: Path, size: Size) -> None:
        """Write the inputs of one run into `directory`; equal sizes give equal inputs on one machine."""
        directory.mkdir(parents=True, exist_ok=True)
        self.write_inputs(directory, size)
        (directory / _SIZE_FILE).write_text(size)

    @abstractmethod
    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write the inputs; `prepare` has made the directory and remembers the size."""

    @abstractmethod
    def command(self, directory: Path) -> Command:
        """Say how to start the run that `prepare` laid into `directory`."""

    @abstractmethod
    def progress(self, directory: Path) -> Progress:
        """Read from the output files how far the run has come; cheap, and valid at any time."""

    @abstractmethod
    def check(self, directory: Path, reference: Path) -> list[str]:
        """Compare a finished run with an uninterrupted one: each difference as a sentence, none if nothing was lost."""


def size_of(directory: Path) -> Size:
    """Return the size for which `directory` was prepared."""
    return Size((directory / _SIZE_FILE).read_text())
