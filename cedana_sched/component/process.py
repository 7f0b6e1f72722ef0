"""Start, run and shutdown of a component's process: configuration file, signals, exit status."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from cedana_sched.component import logs
from cedana_sched.component.configuration import Configuration, load
from cedana_sched.model.errors import CedanaSchedError, UsageError

log = structlog.get_logger(__name__)


def start(
    component: str, kind: type[Configuration], go: Callable[[Configuration], int], file: Path | None = None
) -> int:
    """Read the component's file, configure logging, and call `go`; return the exit status, 2 for an invalid file."""
    faulthandler.enable()  # a crash in native code prints its Python stack
    try:
        configuration, unknown = load(kind, file)
    except UsageError as error:
        print(error, file=sys.stderr)  # logging is not configured yet
        return 2
    logs.configure(component, configuration.log)
    for setting in unknown:
        log.warning("setting passed over, which a newer version supports", setting=setting)
    return go(configuration)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` until it ends; SIGTERM and SIGINT cancel it. Return the exit status."""
    return run_with_graceful_stop(lambda stopping: _run_until_stopping(stopping, work))


def run_with_graceful_stop(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `work`, which ends itself once SIGTERM or SIGINT has set the event. Return the exit status."""
    try:
        asyncio.run(_run_with_signals(work))
    except CedanaSchedError as error:
        log.error("ended", errors=[str(error)])  # noqa: TRY400  # no traceback for expected errors
        return 1
    except BaseExceptionGroup as group:
        _log_errors(group)
        return 1
    return 0


async def _run_with_signals(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stopping = asyncio.Event()

    def stop() -> None:
        log.info("stopping")
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await work(stopping)


async def _run_until_stopping(stopping: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.create_task(work(), name="component")
    signalled = asyncio.create_task(stopping.wait(), name="signals")
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    task.cancel()  # no effect if it has ended
    try:
        await task
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise


def _log_errors(group: BaseExceptionGroup[BaseException]) -> None:
    """Log our own errors as messages, defects with tracebacks."""
    ours, defects = group.split(CedanaSchedError)
    if ours is not None:
        log.error("ended", errors=[str(error) for error in _flat(ours)])
    if defects is not None:
        log.error("ended by a defect", exc_info=defects)


def _flat(group: BaseExceptionGroup[CedanaSchedError]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error
