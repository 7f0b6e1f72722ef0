"""The real clock of the machine."""

from __future__ import annotations

import asyncio
import time

LONGEST_SLEEP_SECONDS = 60.0
"""The wall clock may be set while we sleep, so that we look at it now and then."""


class SystemClock:
    """Implements `ports.Clock`."""

    def now(self) -> float:
        return time.time()

    async def wait_until(self, at: float) -> None:
        while (left := at - time.time()) > 0:  # noqa: ASYNC110 - time itself is what we wait for
            await asyncio.sleep(min(left, LONGEST_SLEEP_SECONDS))
