"""The engine's own scheduler as the conformance suite plays it: the real loop, on a machine that does nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability, Stage
from cedana_sched.adapter.conformance.stage import yield_to_loop
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.local.jobs.job import Job, JobPhase, Run
from cedana_sched.local.jobs.job_event_rules import RunEndDetails
from tests.unit.local.jobs.loop_bench import Bench

GROUPS = """
[[groups]]
name = "bio"
nominalQuota = {cpu = 2, memory = "4Gi"}
preemption = {reclaimWithinCohort = "Any"}

[[groups]]
name = "ml"
nominalQuota = {cpu = 2, memory = "4Gi"}
preemption = {reclaimWithinCohort = "Any"}
"""


class EmbeddedStage(Stage):
    """Jobs of bio take the whole machine; a preemption is a job of ml that wants its half."""

    lacks: ClassVar = {
        SchedulerCapability.DEADLINE: "the loop terminates nobody whom it has given a signal for before the release"
    }

    def __init__(self) -> None:
        self.bench = Bench(GROUPS)
        self.is_new = True
        self.numbers = itertools.count(1)
        self.preemptor = ""

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[EmbeddedAdapter]:
        if not self.is_new:
            self.bench = await self.bench.restart(GROUPS)
        self.is_new = False
        yield EmbeddedAdapter(self.bench.loop)

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        job = await self._submitted(protected, members, deadline_seconds)
        await self.bench.begin(job.description.name)
        return self._workloads(job.uid)

    async def bind_workload(self) -> RunningWorkload:
        (workload,) = self._workloads((await self._submitted()).uid)
        return workload

    async def preempt(self, victim: RunningWorkload) -> None:
        self.preemptor = f"train-{next(self.numbers)}"
        await self.bench.submit(self.preemptor, "ml", cpus="2")
        await self._end_what_is_terminated()

    async def take_back(self, victim: RunningWorkload) -> None:
        await self.bench.loop.cancel(self.preemptor)

    async def finish(self, victim: RunningWorkload) -> None:
        await self.bench.loop.on_run_ended(victim.uid, RunEndDetails(self.bench.time, 0))

    async def give_up(self, workload: RunningWorkload) -> None:
        await self.bench.loop.cancel(self._owner(workload).uid)

    async def is_evicted(self, victim: RunningWorkload) -> bool:
        await self._end_what_is_terminated()
        return self._run(victim).has_ended

    async def wait_until_evicted(self, victim: RunningWorkload) -> None:
        while not await self.is_evicted(victim):
            await self.wait_until_reported()

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        await self.bench.begin(self.preemptor)
        await self.bench.end(self.preemptor)
        owner = self._owner(victim)
        await self.bench.begin(owner.description.name)
        (again,) = self._workloads(owner.uid)
        return again

    async def wait_until_reported(self) -> None:
        await yield_to_loop()

    async def repeat_current_state(self) -> None:
        await self.bench.loop.resume_after_restart()

    @asynccontextmanager
    async def scheduler_outage(self) -> AsyncIterator[None]:
        self.bench.journal.full = True
        try:
            yield
        finally:
            self.bench.journal.full = False

    async def _submitted(self, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0) -> Job:
        for job in self.bench.loop.jobs:
            if job.phase is JobPhase.STARTING:  # only what runs can be ended
                await self.bench.begin(job.uid)
            if job.live:
                await self.bench.loop.cancel(job.uid)
        await self._end_what_is_terminated()
        name = f"sim-{next(self.numbers)}"
        identifier = name if protected else None
        size = {"cpus": str(4 // members), "replicas": members}
        return await self.bench.submit(name, "bio", id=identifier, deadline_seconds=deadline_seconds, **size)

    async def _end_what_is_terminated(self) -> None:
        """The machine does as the loop asks."""
        while self.bench.terminated:
            await self.bench.loop.on_run_ended(self.bench.terminated.pop(), RunEndDetails(self.bench.time, None))

    def _workloads(self, uid: str) -> tuple[RunningWorkload, ...]:
        job = self.bench.job(uid)
        assert job.phase in {JobPhase.STARTING, JobPhase.RUNNING}, job.why
        identity = job.description.identity
        return tuple(RunningWorkload(job.workload(run, "here"), identity(run.index)) for run in job.active_runs)

    def _owner(self, workload: RunningWorkload) -> Job:
        owner = self.bench.loop.job_uid_of_run(workload.uid)
        assert owner is not None
        return self.bench.job(owner)

    def _run(self, workload: RunningWorkload) -> Run:
        return next(run for run in self._owner(workload).runs if run.uid == workload.uid)
