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
from cedana_sched.retrying import WATCHES, Backoff

log = structlog.get_logger(__name__)

SHORTEST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT: Final = dt.timedelta(days=1)
"""Upper bound between two attempts, so that a changed system clock matters only briefly."""


async def reconcile_forever(
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
    backoff = Backoff(WATCHES)
    while True:
        changed.clear()
        try:
            wait = max((await look() - now()).total_seconds(), SHORTEST_WAIT_SECONDS)
            backoff.reset()
        except CedanaSchedError as error:
            problems.inc()
            wait = backoff.next_pause()
            log.warning(name, error=error.message, remedy=error.remedy, pause_seconds=wait)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait, LONGEST_WAIT.total_seconds())):
                await changed.wait()
