"""A job shows what a checkpoint of it would fail for, soon after it runs and not only when it is preempted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cedana_sched.agent.workload_preflight import FoundObstacle, Inspection
from cedana_sched.local.job_inspections import JobInspections
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.local.jobs.loop_bench import Bench

RING = Inspection(FoundObstacle("UsesIoUring", "process 7 (node) uses io_uring: switch it off"))


class Machine:
    """An engine's loop, and what each look at its runs finds, one after the other."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.found: list[Inspection | None] = []
        self.looked: list[str] = []
        self.all_found = asyncio.Event()
        self.inspections = JobInspections(self.inspect, self.bench.loop, "here", lambda: self.bench.time)

    async def inspect(self, workload: WorkloadRef, *, peers: bool) -> Inspection | None:
        self.looked.append(workload.uid)
        found = self.found.pop(0)
        if not self.found:
            self.all_found.set()
        return found

    async def look(self, *found: Inspection | None) -> list[str]:
        """Have as many looks at the job `sim`; return the events since."""
        before = len(self.bench.journal.events)
        for one in found:
            self.all_found.clear()
            self.found = [one]
            self.inspections.on_run_began(self.bench.run("sim").uid, self.bench.time - 3600)
            async with asyncio.timeout(60):
                await self.all_found.wait()
        await self.bench.loop.configure(self.bench.loop.configuration)  # what the last look has found is recorded
        return self.bench.journal.events[before:]

    @property
    def obstacle(self) -> str | None:
        found = self.bench.run("sim").obstacle
        return found.message if found is not None else None


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    one = Machine()
    task = asyncio.create_task(one.inspections.run())
    yield one
    task.cancel()


async def test_an_obstacle_is_shown_and_told_once(machine: Machine) -> None:
    await machine.bench.running("sim")
    again = Inspection(FoundObstacle("UsesIoUring", "process 8 (node) uses io_uring: switch it off"))
    assert await machine.look(RING, RING, again) == ["NotCheckpointable"]
    assert machine.obstacle == "process 8 (node) uses io_uring: switch it off"


async def test_another_reason_is_told_too_and_so_is_the_end(machine: Machine) -> None:
    await machine.bench.running("sim")
    other = Inspection(FoundObstacle("IsTraced", "process 7 (node) is traced"))
    assert await machine.look(RING, other, Inspection()) == ["NotCheckpointable", "NotCheckpointable", "Checkpointable"]
    assert machine.obstacle is None


async def test_an_unfinished_look_takes_nothing_back(machine: Machine) -> None:
    await machine.bench.running("sim")
    assert await machine.look(RING, Inspection(unfinished="the look does not end"), None) == ["NotCheckpointable"]
    assert machine.obstacle is not None


async def test_the_next_engine_knows_it(machine: Machine) -> None:
    await machine.bench.running("sim")
    await machine.look(RING)
    again = await machine.bench.restart()
    assert again.run("sim").obstacle == machine.bench.run("sim").obstacle
    assert again.run("sim").obstacle is not None


async def test_a_job_without_an_id_is_not_looked_at(machine: Machine) -> None:
    await machine.bench.running("train", "ml")
    machine.inspections.on_run_began(machine.bench.run("train").uid, machine.bench.time)
    assert machine.inspections._inspections._schedule.next_due() is None


async def test_a_run_that_has_ended_is_looked_at_no_more(machine: Machine) -> None:
    await machine.bench.running("sim")
    uid = machine.bench.run("sim").uid
    machine.inspections.on_run_began(uid, machine.bench.time)
    machine.inspections.on_run_ended(uid)
    await machine.bench.end("sim")
    machine.inspections.on_run_began(uid, machine.bench.time)
    assert machine.inspections._inspections._schedule.next_due() is None
    await machine.bench.loop.on_run_inspected(uid, None)
    assert machine.looked == []
