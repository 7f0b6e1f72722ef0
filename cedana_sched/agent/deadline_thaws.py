"""Thaws workloads of checkpoints that are past their deadlines, without an order.

The coordinator aborts such a checkpoint. But its orders may stop arriving: the API server or every coordinator is down,
or the node was taken for lost. Until they are back the workload would stay frozen, and keep its dump slot. Two kinds
are never thawed here: a workload that a capture is dumping, and one that is committed and to be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.preemption import WorkloadRef

log = structlog.get_logger()

MARGIN_SECONDS: Final = 15.0
"""Grace after the deadline: an order in flight takes precedence."""


class DeadlineThaws:
    """The scheduled thaws, at most one for each checkpoint; all in one event loop.

    Args:
        thaw: thaws a workload if this checkpoint has frozen it; returns whether it had.
        give_back: called with the uid of a checkpoint whose deadline has expired.
    """

    def __init__(self, thaw: Callable[[str, WorkloadRef], Awaitable[bool]], give_back: Callable[[str], None]) -> None:
        self._thaw = thaw
        self._give_back = give_back
        self._pending: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._is_closed = False

    async def schedule(self, checkpoint_uid: str, workload: WorkloadRef, deadline: float) -> None:
        """Thaw the workload after this time of the event loop's clock, unless `cancel` is called before."""
        await self.cancel(checkpoint_uid)
        if not self._is_closed:
            cancelled = asyncio.Event()
            run = self._run(checkpoint_uid, workload, deadline + MARGIN_SECONDS, cancelled)
            task = asyncio.create_task(run, name=f"thaw of {checkpoint_uid}")
            self._pending[checkpoint_uid] = cancelled, task
            task.add_done_callback(lambda _: self._pending.pop(checkpoint_uid))

    async def cancel(self, checkpoint_uid: str) -> None:
        """Cancel the thaw; a thaw in progress is awaited."""
        while (pending := self._pending.get(checkpoint_uid)) is not None:
            cancelled, task = pending
            cancelled.set()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Cancel all thaws: a dump may outlive this agent."""
        self._is_closed = True
        for uid in tuple(self._pending):
            await self.cancel(uid)

    async def _run(self, uid: str, workload: WorkloadRef, at: float, cancelled: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout_at(at):
                    await cancelled.wait()
                    return
            except TimeoutError:
                self._give_back(uid)
            try:
                is_thawed = await self._thaw(uid, workload)
            except CedanaSchedError as error:
                log.warning("not thawed, trying again", checkpoint=uid, workload=workload.name, error=str(error))
            except Exception:  # a defect must not leave the workload frozen
                log.exception("not thawed, trying again", checkpoint=uid, workload=workload.name)
            else:
                if is_thawed:
                    log.warning("frozen past its deadline, and thawed", checkpoint=uid, workload=workload.name)
                return
            at = asyncio.get_running_loop().time() + MARGIN_SECONDS
