"""Two MPI ranks that exchange halos; the rod must end in the very same bits, and the log in the very same sums.

The options keep OpenMPI on this machine and inside the run's own directory: no remote shell, loopback only,
messages through shared memory that is copied by both sides, nobody spinning while it waits.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import ClassVar

from workloads.comparing import differences, tail
from workloads.compiling import compile_program
from workloads.inputs import cached_inputs, lay_inputs
from workloads.packages import Packages
from workloads.workload import Command, Progress, Size, Workload, size_of

_SOURCE = Path(__file__).parent / "heat.c"
_RANKS = 2
_STEPS = {Size.BRIEF: 2000, Size.TEST: 30_000, Size.DEMO: 50_000}
_TAIL_BYTES = 128
_TUNING = {"mpi_yield_when_idle": "1", "pml": "ob1"}
_TUNING_4 = {
    "btl": "self,vader",
    "btl_vader_single_copy_mechanism": "none",
    "oob_tcp_if_include": "lo",
    "plm": "isolated",
}
_TUNING_5 = {"btl": "self,sm", "smsc": "^cma,knem,xpmem"}
_LAUNCHER_5 = {"plm_ssh_agent": "/bin/false"}
_CONTACT_5 = {"ptl_base_if_include": "lo"}


class Mpi(Workload):
    """Two ranks, 200,000 cells each."""

    name = "mpi"
    title = "two MPI ranks that exchange halos"
    seconds: ClassVar = {Size.BRIEF: 1.5, Size.TEST: 8, Size.DEMO: 20}
    results = ("iterations.log", "rod-0.bin", "rod-1.bin")
    packages = Packages(debian=("openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"))

    def write_inputs(self, directory: Path, size: Size) -> None:  # noqa: ARG002 - one program for all sizes
        lay_inputs(cached_inputs("mpi", _SOURCE.read_bytes(), _compile), directory)
        (directory / "session").mkdir(exist_ok=True)

    def command(self, directory: Path) -> Command:
        tuning = _tuning(directory / "session", _major_version())
        ranks = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(_RANKS))
        argv = ("mpirun", *ranks, *tuning, str(directory / "heat"), str(_STEPS[size_of(directory)]))
        return Command(argv, directory, {"TMPDIR": str(directory / "session")})

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / "iterations.log", _TAIL_BYTES).splitlines()
        return Progress(int(lines[-1].split()[0]) if lines else 0, _STEPS[size_of(directory)], "steps")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """The sums of every step and the final rod of each rank must be the same files."""
        return differences(directory, reference, self.results)


def _tuning(session: Path, version: int) -> list[str]:
    """Options of mpirun; since version 5 the launcher has a kind and names of its own."""
    if version < 5:
        places = {"orte_tmpdir_base": str(session), "btl_vader_backing_directory": str(session)}
        return _options("--mca", _TUNING | _TUNING_4 | places)
    ranks = _TUNING | _TUNING_5 | {"btl_sm_backing_directory": str(session)}
    launcher = _LAUNCHER_5 | {"prte_tmpdir_base": str(session)}
    return _options("--mca", ranks) + _options("--prtemca", launcher) + _options("--pmixmca", _CONTACT_5)


def _options(kind: str, values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (kind, name, value)]


def _major_version() -> int:
    output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Open MPI\) (\d+)\.", output)
    return int(found[1]) if found else 0


def _compile(draft: Path) -> None:
    compile_program("mpicc", "libopenmpi-dev", _SOURCE, draft / "heat")
