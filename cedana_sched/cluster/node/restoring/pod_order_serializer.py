"""Serializes the orders of a pod: the latest order cancels the one before, and ends with the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cedana_sched.model.errors import RestoreError, RetryableError


class OvertakenError(RestoreError, RetryableError):
    """A later order for the same pod has arrived: that order's outcome counts."""


class PodOrderSerializer:
    """The latest order of each pod of a node.

    Args:
        wait_ended: returns when the pod with this uid has finished, or is not cached any more.
    """

    def __init__(self, wait_ended: Callable[[str], Awaitable[None]]) -> None:
        self._wait_ended = wait_ended
        self._working: dict[str, asyncio.Task[None]] = {}
        """By uid of a pod."""

    async def run(self, pod_uid: str, work: Coroutine[Any, Any, None]) -> None:
        """Perform the work of an order.

        Raises:
            OvertakenError: a later order for the pod arrived.
            RestoreError: the pod ended before.
        """
        earlier = self._working.get(pod_uid)
        working = asyncio.create_task(_run_after(earlier, work), name=f"restore of pod {pod_uid}")
        self._working[pod_uid] = working
        ended = asyncio.ensure_future(self._wait_ended(pod_uid))
        try:
            await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
            is_overtaken = working.cancelled()
        finally:
            for task in (working, ended):
                task.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)
            if self._working.get(pod_uid) is working:
                del self._working[pod_uid]
        if is_overtaken:
            raise OvertakenError("another order for the pod has come meanwhile")
        if not is_done:
            ended.result()
            raise RestoreError("the pod ended before it was restored")
        working.result()


async def _run_after(earlier: asyncio.Task[None] | None, work: Coroutine[Any, Any, None]) -> None:
    """Run the work once the earlier, cancelled work has stopped: the two never write into the same pod."""
    try:
        if earlier is not None:
            earlier.cancel()
            await asyncio.wait({earlier})
        await work
    finally:
        work.close()
