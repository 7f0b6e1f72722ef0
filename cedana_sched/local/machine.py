"""This machine as the coordinator and the scheduling loop see it: one node, whose agent runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from cedana_sched.agent.node import NodeAgent
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.coordinator.tasks import pauses
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.jobs.rules import Beginning, Ending
from cedana_sched.local.runs.runtime import LocalRuntime, RunBegan, RunEnded
from cedana_sched.model.errors import NotFoundError
from cedana_sched.model.orders import Order, Outcome, Progress
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Restore

log = structlog.get_logger(__name__)

NODE = "local"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL for a job that leaves without a snapshot, as Kubernetes' default."""


class LocalAgents:
    """The coordinator's `Agents`: the one agent, which lives and dies with this process."""

    def __init__(self, agent: NodeAgent, on_progress: Callable[[Progress], None]) -> None:
        self._agent = agent
        self._on_progress = on_progress

    async def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        """See `Agents.perform`."""
        if node != NODE:
            raise ValueError(f"{node} is not this machine")
        async for outcome in self._agent.perform(order):
            yield outcome
            if isinstance(outcome, Progress):
                self._on_progress(outcome)

    def repeat(self, node: str, order: Order) -> None:
        """See `Agents.repeat`: within one process an order is under way as long as `perform` yields."""

    async def changes(self) -> AsyncIterator[NodeLost]:
        """Never yields: what a restart interrupted is ordered again by the coordinator's recovery."""
        never: tuple[NodeLost, ...] = ()
        await asyncio.Event().wait()
        for change in never:
            yield change


class Machine:
    """The scheduling loop's `RunControl`: starts and ends runs in the background, each until it is done."""

    def __init__(self, runtime: LocalRuntime, grace_seconds: float = GRACE_SECONDS) -> None:
        self._runtime = runtime
        self._grace_seconds = grace_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, workload: WorkloadRef) -> None:
        """See `RunControl.start`."""
        self._begin(f"start {workload.uid}", lambda: self._runtime.start_cold(workload, None))

    def terminate(self, run: str) -> None:
        """See `RunControl.terminate`."""
        self._begin(f"terminate {run}", lambda: self._runtime.terminate(run, self._grace_seconds))

    async def close(self) -> None:
        """Begin and wait for nothing any more; the loop asks for it again when it resumes."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._surely(name, act), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _surely(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """What is in the way (a full disk, a process held in the kernel) may go, and what was decided must happen."""
        for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
            try:
                await act()
            except NotFoundError:  # it has ended meanwhile
                return
            except Exception:  # a defect must not end the engine, and all other jobs' scheduling with it
                log.exception("not done, trying again", what=name, pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return


async def tell_of_runs(
    runtime: LocalRuntime, loop: SchedulingLoop, restore_of: Callable[[str], Restore | None]
) -> None:
    """Bring what happens to runs to the scheduling loop, for ever; a run is forgotten once its end is written down.

    What cannot be taken in is said again at the engine's next start; the other runs go on meanwhile.
    """
    async for change in runtime.changes():
        try:
            if isinstance(change, RunBegan):
                await loop.run_began(change.run, _beginning(change, restore_of(change.run)))
            else:
                await loop.run_ended(change.run, _ending(change))
                await runtime.forget(change.run)
        except Exception:
            log.exception("what happened to a run was not taken in", run=change.run)


def _beginning(change: RunBegan, restore: Restore | None) -> Beginning:
    snapshot = str(restore.snapshot) if change.restored and restore is not None and restore.snapshot else None
    return Beginning(change.at, change.restored, snapshot, change.cold_because, change.notes)


def _ending(change: RunEnded) -> Ending:
    record = change.record
    failure = None
    if record.oom_killed:
        failure = f"killed for lack of memory after using {record.max_memory_bytes >> 20} MiB"
    elif record.failure is not None:
        failure = record.failure.message
    lost = record.lost
    return Ending(record.at, record.exit_code, record.signal, None if lost else failure, lost=lost)
