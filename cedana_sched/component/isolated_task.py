"""Retried work that ends on cancellation.

If a task group is cancelled while one of its tasks fails, it raises only the errors (Python 3.11 and 3.12), and
`Task.cancelling` is no reliable sign: a group of 3.11 leaves it raised after errors. A retry loop around such a group
would swallow the cancellation and never end. So work that may fail like that runs in a separate task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def run_in_own_task(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a separate task, and wait for its end.

    Raises:
        asyncio.CancelledError: this task was cancelled, and with it the work, whatever errors the work ended with.
        Exception: the work raised it.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("failed while it was cancelled", error=str(error))
        raise
    task.result()
