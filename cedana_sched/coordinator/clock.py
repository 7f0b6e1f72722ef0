"""The coordinator's clocks; neither jumps when the machine's clock is set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LONGEST_SLEEP_SECONDS = 60.0
"""Bound of one sleep: the clock may be set, or the machine suspended, meanwhile."""
FOLLOWS = 0.1
"""Slew rate, seconds per second, after the clock was set: a deadline expires early by at most this fraction."""


def elapsed_seconds() -> float:
    """Return seconds since boot, including suspend; independent of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyTime:
    """Wall clock that slews instead of jumping, so that setting the clock expires no deadline.

    Args:
        clock: the machine's seconds since the epoch.
        elapsed: see `elapsed_seconds`.
    """

    def __init__(self, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed_seconds) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._shown, self._looked_at = clock(), elapsed()

    def seconds(self) -> float:
        """Return the current time, seconds since the epoch."""
        passed = self._elapsed() - self._looked_at
        most = passed * FOLLOWS
        off = self._clock() - (self._shown + passed)
        self._shown += passed + min(max(off, -most), most)
        self._looked_at += passed
        return self._shown


class SystemClock:
    """Implements `ports.Clock`.

    Args:
        seconds: seconds since the epoch; in a cluster, by the clock that all components share.
        elapsed: see `elapsed_seconds`.
    """

    def __init__(
        self, seconds: Callable[[], float] | None = None, elapsed: Callable[[], float] = elapsed_seconds
    ) -> None:
        self._seconds = seconds or SteadyTime().seconds
        self._elapsed = elapsed

    def now(self) -> float:
        return self._seconds()

    async def wait_until(self, at: float) -> None:
        over = self._elapsed() + at - self._seconds()
        while (left := min(at - self._seconds(), over - self._elapsed())) > 0:  # noqa: ASYNC110 - time is awaited
            await asyncio.sleep(min(left, LONGEST_SLEEP_SECONDS))
