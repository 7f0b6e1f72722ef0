"""How a component's process runs and ends: SIGTERM cancels it, a defect or an error of ours ends it with a sentence."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from cedana_sched.model.errors import CedanaSchedError

log = structlog.get_logger(__name__)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` until it ends or SIGTERM or SIGINT come; the process's exit status."""
    try:
        asyncio.run(_until_told_to_stop(work))
    except CedanaSchedError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        _tell(group)
        return 1
    return 0


async def _until_told_to_stop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.create_task(work(), name="component")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stopping = asyncio.create_task(stopped.wait(), name="signals")
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        log.info("stopping")
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise


def _tell(group: BaseExceptionGroup[BaseException]) -> None:
    """Errors of ours as sentences, defects with all that is known of them."""
    ours, defects = group.split(CedanaSchedError)
    if ours is not None:
        log.error("ended", problems=[str(error) for error in _flat(ours)])
    if defects is not None:
        log.error("ended by a defect", exc_info=defects)


def _flat(group: BaseExceptionGroup[CedanaSchedError]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
