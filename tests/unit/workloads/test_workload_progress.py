"""Progress is read from half-written output files."""

from pathlib import Path

import pytest

from workloads.catalog import WORKLOADS
from workloads.workload import Progress, Size, Workload

HALF_WRITTEN = {
    "gromacs": ("md.log", "           Step           Time\n            100        0.20000\n\n   Energies\n", 100),
    "xgboost": ("progress.txt", "1 0.6\n2 0.5\n", 2),
    "numpy": ("energies.txt", "10 -1.5 2.5\n20 -1.4 2.4\n", 20),
    "mpi": ("iterations.log", "10 3.5\n20 3.25\n", 20),
    "threads": ("thread-0.log", "1\n2\n3\n", 3),
    "tcp": ("answered.log", "1\n2\n", 2),
    "unix": ("answered.log", "1\n2\n", 2),
    "pipe": ("answered.log", "1\n2\n", 2),
    "postgresql": ("acknowledged.17", "0 1 500 0 17 3\n1 1 500 0 17 3\n", 2),
    "redis": ("acknowledged-0.log", "3\n7\n", 7),
    "timers": ("events.log", "timerfd 1\nitimer 1\nposix 1\ntimerfd 2\nitimer 2\nposix 2\n", 2),
    "memory": ("ticks.log", "filled 16384\ntick 1 10\ntick 2 20\nrewrote 8\n", 2),
}


def prepared(directory: Path) -> Path:
    """A directory that remembers its size, without the inputs that need packages."""
    (directory / "size").write_text(Size.BRIEF)
    return directory


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_nothing_is_done_before_the_first_output(workload: Workload, tmp_path: Path) -> None:
    progress = workload.progress(prepared(tmp_path))
    assert progress.done == 0
    assert progress.total > 0
    assert progress.fraction == 0


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_last_line_counts(workload: Workload, tmp_path: Path) -> None:
    name, text, want = HALF_WRITTEN[workload.name]
    (tmp_path / name).write_text(text)
    assert workload.progress(prepared(tmp_path)).done == want


def test_a_fraction_never_exceeds_one() -> None:
    assert Progress(3, 2, "steps").fraction == 1
    assert Progress(0, 0, "steps").fraction == 0
