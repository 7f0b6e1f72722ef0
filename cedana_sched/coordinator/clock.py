"""The clocks that the coordinator goes by: neither jumps when the machine's own is set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LONGEST_SLEEP_SECONDS = 60.0
"""The clock may be set while we sleep, and the machine suspended, so that we look at it now and then."""
FOLLOWS = 0.1
"""A clock that was set is followed by so many seconds in each second: a deadline comes no more than that too early."""


def elapsed_seconds() -> float:
    """Since this machine was started, whatever its clock is set to; those included in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyTime:
    """The machine's time of day, which passes no deadline when its clock is set: it follows slowly.

    Args:
        clock: seconds since the epoch, by this machine.
        elapsed: see `elapsed_seconds`.
    """

    def __init__(self, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed_seconds) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._shown, self._looked_at = clock(), elapsed()

    def seconds(self) -> float:
        """Now, since the epoch."""
        passed = self._elapsed() - self._looked_at
        most = passed * FOLLOWS
        off = self._clock() - (self._shown + passed)
        self._shown += passed + min(max(off, -most), most)
        self._looked_at += passed
        return self._shown


class SystemClock:
    """Implements `ports.Clock`.

    Args:
        seconds: since the epoch; in a cluster by the clock that all components share.
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
