"""When whoever keeps a Secret looks at it: at each change, when something is due, and after a problem again."""

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
"""Between two looks, so that a clock that was set does not matter for long."""


async def look_in_turn(
    name: str,
    look: Callable[[], Awaitable[dt.datetime]],
    changed: asyncio.Event,
    problems: Counter,
    now: Callable[[], dt.datetime],
) -> None:
    """Look, for ever.

    Args:
        name: of what is kept, for the log.
        look: does what is to be done, and returns when to look again, should nothing change before.
        changed: set when there is something to look at.
        problems: counts the looks that failed.
        now: the time of day.
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
