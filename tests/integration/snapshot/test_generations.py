"""What a process tree has, it still has after three generations of dump, kill and restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.snapshot import freezer
from workloads.catalog import WORKLOADS
from workloads.reference import run_uninterrupted
from workloads.workload import Size

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

pytestmark = pytest.mark.criu

COUNTING = """
import time
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.002)
"""


def test_a_counting_job_loses_and_repeats_nothing(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(COUNTING)
    for _ in range(3):
        lab.await_progress()
        lab.next_generation()
    lab.await_progress()
    lab.kill()
    assert lab.lines() == [str(number) for number in range(1, len(lab.lines()) + 1)]


COUNTING_IN_A_FILE = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(mmap.PAGESIZE))
    file.flush()
    page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
number = 0
print("counting")
while True:
    number += 1
    page[:8] = number.to_bytes(8, "little")
"""


def test_nothing_is_executed_between_freeze_and_kill(either_lab: Laboratory) -> None:
    lab = either_lab
    counter = lab.folder / "counter"
    lab.python(COUNTING_IN_A_FILE, str(counter))
    lab.await_lines(1)
    first = counter.read_bytes()
    lab.await_true(lambda: counter.read_bytes() != first, "counting")
    freezer.freeze(lab.cgroup)
    frozen_at = counter.read_bytes()
    lab.dump()
    assert freezer.is_frozen(lab.cgroup)
    assert counter.read_bytes() == frozen_at
    lab.kill()
    assert counter.read_bytes() == frozen_at
    lab.restore()
    lab.await_true(lambda: counter.read_bytes() != frozen_at, "counting after the restore")


def test_a_dump_works_however_deep_its_folder_lies(lab: Laboratory) -> None:
    """The kernel allows 107 characters for the path of the socket on which CRIU streams."""
    lab.python(COUNTING)
    lab.await_progress()
    freezer.freeze(lab.cgroup)
    lab.dump(workdir=lab.folder / ("d" * 100) / ("e" * 100))
    lab.kill()
    lab.restore()
    lab.await_progress()


def test_a_thawed_job_goes_on_as_if_nothing_had_happened(either_lab: Laboratory) -> None:
    lab = either_lab
    lab.python(COUNTING)
    lab.await_progress()
    pids = freezer.pids_in_cgroup(lab.cgroup)
    freezer.freeze(lab.cgroup)
    lab.dump()
    freezer.thaw(lab.cgroup)
    lab.await_progress()
    assert freezer.pids_in_cgroup(lab.cgroup) == pids
    lab.kill()
    assert lab.lines() == [str(number) for number in range(1, len(lab.lines()) + 1)]


@pytest.mark.parametrize("name", ["threads", "tcp", "unix", "mpi"])
def test_a_workload_ends_as_if_it_had_never_stopped(name: str, lab: Laboratory, tmp_path: Path) -> None:
    """Threads, shared memory, pipes, locks, unlinked files; sockets with bytes under way; two MPI ranks."""
    workload = WORKLOADS[name]
    workload.install()
    reference = run_uninterrupted(workload, tmp_path / "reference", Size.BRIEF)
    run = tmp_path / "run"
    workload.prepare(run, Size.BRIEF)
    command = workload.command(run)
    lab.start(*command.argv, directory=command.directory, **command.environment)
    for generation in range(1, 4):
        lab.await_true(lambda: workload.progress(run).fraction >= generation / 5, "progress")  # noqa: B023
        lab.next_generation()
    assert lab.wait() == 0
    assert workload.check(run, reference.directory) == []
