"""Looks at the processes of jobs soon after their start, so that a job shows what a checkpoint of it would fail for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cedana_sched.agent.inspection_schedule import Look
from cedana_sched.agent.workload_inspections import Inspect, WorkloadInspections
from cedana_sched.agent.workload_preflight import Inspection
from cedana_sched.local.jobs.job import RunObstacle
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.model.errors import NotFoundError


class JobInspections:
    """The looks at one engine's jobs with an id. Run `run` as a task.

    Args:
        inspect: looks at a run once.
        loop: has the jobs.
        node: the engine's name for its machine.
        now: seconds since the epoch, by which runs are dated.
    """

    def __init__(self, inspect: Inspect, loop: SchedulingLoop, node: str, now: Callable[[], float]) -> None:
        self._inspections = WorkloadInspections(inspect, self._publish)
        self._loop = loop
        self._node = node
        self._now = now

    async def run(self) -> None:
        """Look, until cancelled."""
        await self._inspections.run()

    def on_run_began(self, uid: str, at: float) -> None:
        """Look at a run that began at that time, perhaps under an earlier engine."""
        with suppress(NotFoundError):  # it has ended
            job, run = self._loop.find_active_run(uid)
            if job.description.id is not None:
                self._inspections.on_started(job.workload(run, self._node), max(self._now() - at, 0.0))

    def on_run_ended(self, uid: str) -> None:
        """Look at a run no more."""
        self._inspections.drop(uid)

    async def _publish(self, look: Look, inspection: Inspection) -> None:
        if inspection.unfinished is not None:  # what an earlier look has found stays
            return
        found = inspection.obstacle
        obstacle = RunObstacle(found.reason, found.message) if found is not None else None
        await self._loop.on_run_inspected(look.workload.uid, obstacle)
