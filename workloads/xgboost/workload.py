"""XGBoost trains on data that it makes from a seed; a preempted training must end in the very same model file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from workloads.comparing import differences, tail
from workloads.packages import SINGLE_THREAD, Packages, python_of
from workloads.workload import Command, Progress, Size, Workload, size_of

_TRAIN = Path(__file__).parent / "train.py"
_REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "demo.txt"
_ROWS = 120_000
_ROUNDS = {Size.BRIEF: 20, Size.TEST: 400, Size.DEMO: 500}
_LINE_BYTES = 64


class XGBoost(Workload):
    """Boosted trees on 120,000 rows of 40 columns, one thread."""

    name = "xgboost"
    title = "XGBoost training of boosted trees"
    seconds: ClassVar = {Size.BRIEF: 2, Size.TEST: 8, Size.DEMO: 9}
    results = ("model.ubj", "progress.txt")
    packages = Packages(requirements=_REQUIREMENTS)

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: the data come from a seed."""

    def command(self, directory: Path) -> Command:
        arguments = (str(_ROWS), str(_ROUNDS[size_of(directory)]))
        return Command((python_of(_REQUIREMENTS), str(_TRAIN), *arguments), directory, SINGLE_THREAD)

    def progress(self, directory: Path) -> Progress:
        total = _ROUNDS[size_of(directory)]
        lines = tail(directory / "progress.txt", 2 * _LINE_BYTES).splitlines()
        return Progress(int(lines[-1].split()[0]) if lines else 0, total, "rounds")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """The model must be the same file, and so must the loss after every round."""
        return differences(directory, reference, self.results)
