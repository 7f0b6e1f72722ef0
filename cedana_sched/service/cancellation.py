"""Work that is tried again after errors, and that ends when it is cancelled.

A task group that is cancelled while one of its tasks fails raises the errors alone (Python 3.11 and 3.12), and
`Task.cancelling` does not tell either: a group of 3.11 leaves it raised after errors. Whoever catches such errors and
tries again would go on for ever. So what may fail so runs in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a task of its own, and wait for its end.

    Raises:
        asyncio.CancelledError: this task was cancelled, and with it the work, whatever errors that has ended with.
        Exception: the work has raised it.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("failed while it was cancelled", problem=str(error))
        raise
    task.result()
