"""The stand-in for GROMACS: the same kind of run and the same kind of check, from PyPI's NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from workloads.comparing import differences, tail
from workloads.packages import SINGLE_THREAD, Packages, python_of
from workloads.workload import Command, Progress, Size, Workload, size_of

_REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "numpy.txt"
_SIMULATE = Path(__file__).parent / "simulate.py"
_STEPS = {Size.BRIEF: 50, Size.TEST: 200, Size.DEMO: 1000}
_TAIL_BYTES = 256


class NumpyDynamics(Workload):
    """512 particles that attract and repel each other."""

    name = "numpy"
    title = "NumPy molecular dynamics"
    seconds: ClassVar = {Size.BRIEF: 1.5, Size.TEST: 4, Size.DEMO: 20}
    results = ("final.bin", "trajectory.bin", "energies.txt")
    packages = Packages(requirements=_REQUIREMENTS)

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: the particles start on a lattice."""

    def command(self, directory: Path) -> Command:
        return Command(
            (python_of(_REQUIREMENTS), str(_SIMULATE), str(_STEPS[size_of(directory)])), directory, SINGLE_THREAD
        )

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / "energies.txt", _TAIL_BYTES).splitlines()
        return Progress(int(lines[-1].split()[0]) if lines else 0, _STEPS[size_of(directory)], "steps")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Final state, trajectory and energies must be the same files."""
        return differences(directory, reference, self.results)
