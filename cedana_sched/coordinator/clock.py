"""The real clock of the machine, or one that is corrected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LONGEST_SLEEP_SECONDS = 60.0
"""The wall clock may be set while we sleep, so that we look at it now and then."""


class SystemClock:
    """Implements `ports.Clock`.

    Args:
        seconds: since the epoch; in a cluster by the clock that all components share.
    """

    def __init__(self, seconds: Callable[[], float] = time.time) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return self._seconds()

    async def wait_until(self, at: float) -> None:
        while (left := at - self._seconds()) > 0:  # noqa: ASYNC110 - time itself is what we wait for
            await asyncio.sleep(min(left, LONGEST_SLEEP_SECONDS))
