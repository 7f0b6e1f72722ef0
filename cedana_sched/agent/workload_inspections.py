"""Looks at running workloads, soon after their start and on request, one at a time, and publishes what is found.

What stands in the way of a checkpoint is thereby known while its owner can still do something about it, and not only
when the workload is evicted. The looks are the least urgent work of a node: none is begun before the last one has
ended or taken too long, and they use none of the threads on which freezes wait (`workload_preflight`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, Protocol

import structlog

from cedana_sched.agent.inspection_schedule import InspectionSchedule, Look
from cedana_sched.agent.workload_preflight import Inspection
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.preemption import WorkloadRef

log = structlog.get_logger(__name__)


class Inspect(Protocol):
    """See `Preflight.inspect`."""

    async def __call__(self, workload: WorkloadRef, *, peers: bool) -> Inspection | None: ...


class WorkloadInspections:
    """The looks of one node. Run `run` as a task.

    Args:
        inspect: looks at a workload once.
        publish: publishes the result of a look; raises CedanaSchedError if it cannot now.
        schedule: says when.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        inspect: Inspect,
        publish: Callable[[Look, Inspection], Awaitable[None]],
        schedule: InspectionSchedule | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inspect = inspect
        self._publish = publish
        self._schedule = schedule or InspectionSchedule()
        self._now = now
        self._changed = asyncio.Event()

    def on_started(self, workload: WorkloadRef, ran_seconds: float = 0.0) -> None:
        """See `InspectionSchedule.on_started`."""
        self._schedule.on_started(workload, self._now(), ran_seconds)
        self._changed.set()

    def request(self, workload: WorkloadRef) -> None:
        """See `InspectionSchedule.request`."""
        self._schedule.request(workload, self._now())
        self._changed.set()

    def drop(self, uid: str) -> None:
        """Look at a workload no more."""
        self._schedule.drop(uid)

    async def run(self) -> NoReturn:
        """Look, until cancelled."""
        while True:
            self._changed.clear()
            if (look := self._schedule.take_due(self._now())) is not None:
                await self._perform(look)
                continue
            due = self._schedule.next_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(due - self._now(), 0.0)):
                    await self._changed.wait()

    async def _perform(self, look: Look) -> None:
        try:
            # a connection to another workload lasts, so the last look finds it, too
            inspection = await self._inspect(look.workload, peers=look.is_last)
            if inspection is not None:
                await self._publish(look, inspection)
        except (CedanaSchedError, OSError) as error:
            log.warning("workload not looked at after its start", workload=look.workload.name, error=str(error))
            self._schedule.on_failed(look, self._now())
        except Exception:  # a defect that shows in one workload must not end the looks at others
            log.exception("workload not looked at after its start", workload=look.workload.name)
        else:
            if inspection is not None and inspection.is_postponed:
                self._schedule.on_failed(look, self._now())
            else:
                self._schedule.on_succeeded(look)
