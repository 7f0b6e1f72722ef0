"""Reconcile loop of a kept Secret: at each change, when due, and with backoff after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from prometheus_client import Counter

from cedana_sched.model.errors import CedanaSchedError

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_WAIT: Final = dt.timedelta(days=1)
"""Upper bound between two attempts, so that a changed system clock matters only briefly."""


async def look_in_turn(
    name: str,
    look: Callable[[], Awaitable[dt.datetime]],
    changed: asyncio.Event,
    problems: Counter,
    now: Callable[[], dt.datetime],
) -> None:
    """Reconcile forever.

    Args:
        name: of the kept object, for the log.
        look: reconciles, and returns when to run again if nothing changes before.
        changed: set when there is a change to reconcile.
        problems: counts failed attempts.
        now: returns the time of day.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        changed.clear()
        try:
            wait = max((await look() - now()).total_seconds(), FIRST_PAUSE_SECONDS)
            pause = FIRST_PAUSE_SECONDS
        except CedanaSchedError as error:
            problems.inc()
            log.warning(name, problem=error.message, remedy=error.remedy, pause_seconds=pause)
            wait, pause = pause, min(pause * 2, LONGEST_PAUSE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait, LONGEST_WAIT.total_seconds())):
                await changed.wait()
