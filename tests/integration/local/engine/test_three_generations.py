"""Real programs, preempted three times by a real engine, end as if they had never stopped."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cedana_sched.local.views import JobView
from demo.reference import run_reference
from tests.integration.local.engine.conftest import Engine
from workloads.catalog import WORKLOADS
from workloads.comparing import EVIDENCE_BYTES, tail
from workloads.workload import Size, Workload

pytestmark = pytest.mark.criu

GENERATIONS = 3
RUN_SECONDS = 240.0


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that other users may pass: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="generations-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", list(WORKLOADS))
async def test_nothing_is_lost_over_three_generations(name: str, engine: Engine, room: Path) -> None:
    workload = WORKLOADS[name]
    workload.install()
    ours, reference = room / "ours", room / "reference"
    for directory in (ours, reference):
        workload.prepare(directory, Size.TEST)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_reference(workload, reference))
        faults = await _preempted_run(engine, workload, ours)
    assert faults + workload.check(ours, reference) == []
    shutil.rmtree(ours)


async def _preempted_run(engine: Engine, workload: Workload, directory: Path) -> list[str]:
    """Run to the end with a preemption at an eighth, two and three eighths; returns what went wrong.

    What is left after the last one is time that a busy machine may take until it is preempted.
    """
    command = workload.command(directory)
    job = await engine.submit(
        *command.argv, id=workload.name, cpus="1", cwd=str(command.directory), env=command.environment
    )
    async with engine.client() as client:
        for generation in range(1, GENERATIONS + 1):
            await engine.until(job.uid, _in_run(generation))
            await _advance(workload, directory, generation / (2 * (GENERATIONS + 1)))
            await client.preempt(job.uid)
    done = await engine.until_phase(job.uid, "Succeeded", "Failed", seconds=RUN_SECONDS)
    if done.phase != "Succeeded":
        return [f"{done.phase}: {done.why}", tail(Path(done.stderr), EVIDENCE_BYTES)]
    origins = [run.restored_from for run in done.runs]
    wanted = [None, *(f"default/{workload.name}/0/main@{number}" for number in range(1, GENERATIONS + 1))]
    return [] if origins == wanted else [f"continued from {origins} instead of {wanted}"]


def _in_run(number: int) -> Callable[[JobView], bool]:
    return lambda job: job.phase == "Running" and len(job.runs) == number


async def _advance(workload: Workload, directory: Path, fraction: float) -> None:
    async with asyncio.timeout(RUN_SECONDS):
        # A program of others says how far it is in its files only.
        while workload.progress(directory).fraction < fraction:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
