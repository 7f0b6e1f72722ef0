"""What Prometheus hears of Armada."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from tests.unit.adapters.armada.armada_builders import World, until


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"cedana_sched_armada_{name}", labels) or 0.0


@pytest.mark.parametrize(("phase", "outcome"), [("Running", "resubmitted"), ("Pending", "left")])
async def test_what_becomes_of_a_preempted_job_is_counted(phase: str, outcome: str, world: World) -> None:
    before = value("preempted_jobs_total", outcome=outcome)
    job = world.submit()
    world.start(job, phase=phase)
    async with world.coordinator() as coordinator:
        world.armada.preempt(job)
        if phase == "Running":
            await coordinator.release(await coordinator.signal())
        await until(lambda: value("preempted_jobs_total", outcome=outcome) == before + 1)


async def test_streams_are_counted_and_their_failures(world: World) -> None:
    before = value("watch_failures_total")
    world.armada.denied.add("watch")
    world.start(world.submit())
    async with world.coordinator():
        await until(lambda: value("job_sets_watched") == 1 and value("watch_failures_total") > before)
    assert value("job_sets_watched") == 0
