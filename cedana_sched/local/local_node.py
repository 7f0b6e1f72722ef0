"""This machine as a node of the coordinator and the scheduling loop; the node's agent runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.local.job_inspections import JobInspections
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.runs.runtime import LocalRuntime, RunBegan, RunEnded
from cedana_sched.model.errors import NotFoundError
from cedana_sched.model.orders import Order, Outcome, Progress
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Restore
from cedana_sched.retrying import CHORES, Backoff

log = structlog.get_logger(__name__)

NODE = "local"
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL for a job that is evicted without a snapshot; Kubernetes' default."""


class LocalAgents:
    """The coordinator's `Agents`, with the single agent of this process."""

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

    def repeat_order(self, node: str, order: Order) -> None:
        """Do nothing (see `Agents.repeat_order`): within one process an order lasts as long as `perform` yields."""

    async def lost_nodes(self) -> AsyncIterator[NodeLost]:
        """Never yield: the coordinator's recovery repeats the orders that a restart interrupted."""
        never: tuple[NodeLost, ...] = ()
        await asyncio.Event().wait()
        for change in never:
            yield change


class BackgroundRunControl:
    """The scheduling loop's `RunControl`: starts and terminates runs in the background, with retries."""

    def __init__(self, runtime: LocalRuntime, grace_seconds: float = GRACE_SECONDS) -> None:
        self._runtime = runtime
        self._grace_seconds = grace_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, workload: WorkloadRef) -> None:
        """See `RunControl.start`."""
        self._start_action(f"start {workload.uid}", lambda: self._runtime.start_cold(workload, None))

    def terminate(self, run: str) -> None:
        """See `RunControl.terminate`."""
        self._start_action(f"terminate {run}", lambda: self._runtime.terminate(run, self._grace_seconds))

    async def close(self) -> None:
        """Cancel all actions in flight; `SchedulingLoop.resume_after_restart` repeats them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_action(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._retry_until_success(name, act), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retry_until_success(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """Retry `act` with backoff until success: a full disk or a process held in the kernel may be transient."""
        backoff = Backoff(CHORES)
        while True:
            try:
                await act()
            except NotFoundError:  # the run has ended meanwhile
                return
            except Exception:  # a defect must not end the engine, which schedules all other jobs too
                pause = backoff.next_pause()
                log.exception("not done, trying again", what=name, pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return


async def forward_run_events(
    runtime: LocalRuntime,
    loop: SchedulingLoop,
    restore_of: Callable[[str], Restore | None],
    inspections: JobInspections,
) -> None:
    """Forward the runtime's events to the scheduling loop, forever; a run is discarded once its end is persisted.

    An event whose processing fails is published again at the engine's next start; other runs are not affected.
    """
    async for change in runtime.changes():
        try:
            if isinstance(change, RunBegan):
                await loop.on_run_began(change.run, _run_start_details(change, restore_of(change.run)))
                inspections.on_run_began(change.run, change.at)
            else:
                inspections.on_run_ended(change.run)
                await loop.on_run_ended(change.run, _run_end_details(change))
                await runtime.discard_run(change.run)
        except Exception:
            log.exception("what happened to a run was not taken in", run=change.run)


def _run_start_details(change: RunBegan, restore: Restore | None) -> RunStartDetails:
    snapshot = str(restore.snapshot) if change.restored and restore is not None and restore.snapshot else None
    return RunStartDetails(change.at, change.restored, snapshot, change.cold_because, change.notes)


def _run_end_details(change: RunEnded) -> RunEndDetails:
    record = change.record
    failure = None
    if record.oom_killed:
        failure = f"killed for lack of memory after using {record.max_memory_bytes >> 20} MiB"
    elif record.failure is not None:
        failure = record.failure.message
    lost = record.lost
    return RunEndDetails(record.at, record.exit_code, record.signal, None if lost else failure, lost=lost)
