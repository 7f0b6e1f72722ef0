"""GROMACS simulates a box of water that it makes itself; a preempted run must end in the very same bits.

One thread and `-reprod` make GROMACS deterministic, `-pin off` leaves the cores to the scheduler, and
`-cpt -1` switches its own checkpoints off: nothing but the snapshot can carry a run over a preemption.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import ClassVar

from workloads.comparing import differences, tail
from workloads.inputs import cached_inputs, lay_inputs
from workloads.packages import PackageError, Packages
from workloads.workload import Command, Progress, Size, Workload, size_of

_HERE = Path(__file__).parent
_BOX_NANOMETRES = "3.72412"  # twice the period of spc216.gro: the box is equilibrated as it is
_STEPS = {Size.BRIEF: 500, Size.TEST: 1000, Size.DEMO: 5000}
_LOG_TAIL = 4096
_STEP = re.compile(r"^ +Step +Time\n +(\d+) ", re.MULTILINE)
# No backup copies of outputs, no quote of the day; threads are fixed for every library that GROMACS links.
_ENVIRONMENT = {"GMX_MAXBACKUP": "-1", "GMX_NO_QUOTES": "1", "OMP_NUM_THREADS": "1"}


class Gromacs(Workload):
    """A water box of 1,696 molecules, PME electrostatics, 2 fs a step."""

    name = "gromacs"
    title = "GROMACS molecular dynamics of water"
    seconds: ClassVar = {Size.BRIEF: 2.2, Size.TEST: 4.5, Size.DEMO: 22}
    results = ("md.gro", "md.trr", "md.edr")
    packages = Packages(debian=("gromacs",))

    def version(self) -> str:
        """Return GROMACS' own version, for the account of a run and for the key of cached results."""
        output = subprocess.run(["gmx", "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"^GROMACS version: +(\S+)", output, re.MULTILINE)
        return found[1] if found else "unknown"

    def write_inputs(self, directory: Path, size: Size) -> None:
        steps = _STEPS[size]
        sources = b"".join((_HERE / name).read_bytes() for name in ("water.mdp", "water.top"))
        ingredients = f"{self.version()} {steps} {_BOX_NANOMETRES} ".encode() + sources
        lay_inputs(cached_inputs("gromacs", ingredients, lambda draft: _make_box(draft, steps)), directory)

    def command(self, directory: Path) -> Command:
        files = ("-s", "run.tpr", "-deffnm", "md")
        reproducible = ("-ntmpi", "1", "-ntomp", "1", "-reprod", "-notunepme", "-pin", "off", "-cpt", "-1")
        return Command(("gmx", "-quiet", "mdrun", *files, *reproducible), directory, _ENVIRONMENT)

    def progress(self, directory: Path) -> Progress:
        total = _STEPS[size_of(directory)]
        log = tail(directory / "md.log", _LOG_TAIL)
        steps = _STEP.findall(log)
        finished = "Finished mdrun" in log
        return Progress(total if finished else int(steps[-1]) if steps else 0, total, "steps")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Final coordinates, trajectory and energies must be the same files."""
        return differences(directory, reference, self.results)


def _make_box(draft: Path, steps: int) -> None:
    (draft / "topol.top").write_bytes((_HERE / "water.top").read_bytes())
    (draft / "run.mdp").write_text((_HERE / "water.mdp").read_text() + f"nsteps = {steps}\n")
    _gmx(draft, "solvate", "-cs", "spc216.gro", "-box", *[_BOX_NANOMETRES] * 3, "-o", "box.gro", "-p", "topol.top")
    _gmx(draft, "grompp", "-f", "run.mdp", "-c", "box.gro", "-p", "topol.top", "-o", "run.tpr", "-po", "used.mdp")


def _gmx(directory: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["gmx", "-quiet", *arguments],
        cwd=directory,
        env=os.environ | _ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackageError("gromacs", f"'gmx {arguments[0]}' failed with status {done.returncode}", done.stderr)
