"""The API server's time of day, for times that one machine writes and another reads.

One component writes deadlines, eviction marks and releases; another compares them, on a machine whose clock may differ
by half a minute. Every response of the API server has its time (`Date`, whole seconds), by which each process measures
its own clock's offset, and corrects for exactly that.

Between responses, server time advances by elapsed seconds, time suspended included, and not by the wall clock: a step
of the wall clock would move server time past deadlines that are far ahead.

A deadline that has passed cannot be undone. So once server time is known, a single response does not move it far:
further responses must confirm the step, or this machine's own clock, if that was just set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import structlog

log = structlog.get_logger(__name__)

TOLERANCE_SECONDS: Final = 1.0
"""Offset below which the own clock is used unchanged: `Date` cannot resolve less."""
SUDDEN_SECONDS: Final = 10.0
"""Largest step from one response to the next that clock drift, or another API server's clock, explains."""
CONFIRMED_BY: Final = 3
"""Consecutive responses that must agree on a larger step."""

Bounds = tuple[float, float]
"""Bounds of the server's time at this machine's boot, in epoch seconds."""


def _seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerTime:
    """The API server's clock.

    Args:
        clock: this machine's epoch seconds.
        elapsed: seconds since this machine's boot, independent of the wall clock.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = _seconds_since_boot
    ) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._least, self._most = float("-inf"), float("inf")
        self._own = clock() - elapsed()
        """Our wall-clock time of the boot, as of the last response."""
        self._epoch = self._own
        """The server's time of the boot, as far as known."""
        self._doubtful: Bounds | None = None
        """Bounds by the latest responses that contradict the earlier ones."""
        self._agreeing = 0

    def request_start_time(self) -> float:
        """Return the moment at which a request is sent, for `record_response`."""
        return self._elapsed()

    def record_response(self, date: str | None, sent: float) -> None:
        """Record a response that arrived now, to a request of the moment `sent`; an invalid `Date` is ignored."""
        try:
            written = parsedate_to_datetime(date or "").timestamp()
        except (TypeError, ValueError):
            return
        # `Date` was written between then and now, its fraction of a second truncated
        bounds = written - self._elapsed(), written + 1.0 - sent
        was_set = self._has_own_clock_jumped()
        least, most = max(self._least, bounds[0]), min(self._most, bounds[1])
        if least <= most:
            self._adopt_bounds((least, most))
        elif least - most <= SUDDEN_SECONDS or (was_set and self._clamped(bounds) == self._own):
            self._adopt_bounds(bounds)
        else:
            self._record_doubtful_bounds(bounds)

    def seconds(self) -> float:
        """Return the current time in epoch seconds."""
        return self._epoch + self._elapsed()

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.fromtimestamp(self.seconds(), tz=UTC)

    def _has_own_clock_jumped(self) -> bool:
        """Return whether our own clock was set since the last response."""
        before, self._own = self._own, self._clock() - self._elapsed()
        return abs(self._own - before) > TOLERANCE_SECONDS

    def _clamped(self, bounds: Bounds) -> float:
        """Return our own clock's value if it is within the bounds and tolerance, else the nearest bound."""
        if bounds[0] - self._own > TOLERANCE_SECONDS:
            return bounds[0]
        return bounds[1] if self._own - bounds[1] > TOLERANCE_SECONDS else self._own

    def _adopt_bounds(self, bounds: Bounds) -> None:
        self._least, self._most = bounds
        self._epoch = self._clamped(bounds)
        self._doubtful, self._agreeing = None, 0

    def _record_doubtful_bounds(self, bounds: Bounds) -> None:
        """Wait for further responses to confirm a step."""
        known = self._doubtful or bounds
        both = max(known[0], bounds[0]), min(known[1], bounds[1])
        agrees = both[0] <= both[1]
        self._doubtful = both if agrees else bounds
        self._agreeing = self._agreeing + 1 if agrees else 1
        if self._agreeing >= CONFIRMED_BY:
            log.warning("the API server's clock was set", seconds=round(self._doubtful[0] - self._least, 1))
            self._adopt_bounds(self._doubtful)


SERVER_TIME: Final = ServerTime()
"""Of this process, which talks to one API server."""
