"""The API server's time of day, which is the same for whoever asks it: times that one machine writes and another reads.

Deadlines, eviction marks and releases are written by one component and compared by another, on a machine whose clock
may be half a minute apart. Every answer of the API server carries its time (`Date`, whole seconds), so that each
process knows how far its own clock is off, and corrects it by just so much.

Between two answers this time goes on by the seconds that pass, those included in which the machine is suspended. Its
clock may be set meanwhile, and would take this time along, past deadlines that are far.

Deadlines that have passed are never taken back. So one answer does not move this time far, once it is known: others
must agree with it, or this machine's own clock, which was just set.
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
"""What is not more apart is left as it is: less than that the `Date` cannot tell."""
SUDDEN_SECONDS: Final = 10.0
"""A clock that drifts, or another API server's, may be as much apart from one answer to the next."""
CONFIRMED_BY: Final = 3
"""As many answers in a row must agree that the API server's clock is somewhere else."""

Bounds = tuple[float, float]
"""Of what the server's clock showed when this machine was started, in seconds since the epoch."""


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerTime:
    """What the API server's clock shows.

    Args:
        clock: seconds since the epoch, by this machine.
        elapsed: seconds since this machine was started, whatever its clock is set to.
    """

    def __init__(self, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._least, self._most = float("-inf"), float("inf")
        self._own = clock() - elapsed()
        """What our clock showed when this machine was started, as it goes since the last answer."""
        self._epoch = self._own
        """What the server's showed then, as far as we know."""
        self._doubtful: Bounds | None = None
        """What the last answers say, which contradict the ones before."""
        self._agreeing = 0

    def sent(self) -> float:
        """The moment at which a request goes out; for `answered`."""
        return self._elapsed()

    def answered(self, date: str | None, sent: float) -> None:
        """An answer to what was `sent` then came now, with this `Date`; what cannot be read says nothing."""
        try:
            told = parsedate_to_datetime(date or "").timestamp()
        except (TypeError, ValueError):
            return
        # it was written between then and now, and its fraction of a second is cut off
        bounds = told - self._elapsed(), told + 1.0 - sent
        was_set = self._was_set()
        least, most = max(self._least, bounds[0]), min(self._most, bounds[1])
        if least <= most:
            self._take((least, most))
        elif least - most <= SUDDEN_SECONDS or (was_set and self._nearest(bounds) == self._own):
            self._take(bounds)
        else:
            self._doubt(bounds)

    def seconds(self) -> float:
        """Now, since the epoch."""
        return self._epoch + self._elapsed()

    def now(self) -> datetime:
        """Now, in UTC."""
        return datetime.fromtimestamp(self.seconds(), tz=UTC)

    def _was_set(self) -> bool:
        """Whether somebody has set our own clock since the last answer."""
        before, self._own = self._own, self._clock() - self._elapsed()
        return abs(self._own - before) > TOLERANCE_SECONDS

    def _nearest(self, bounds: Bounds) -> float:
        """Our own clock's, as long as it may be right."""
        if bounds[0] - self._own > TOLERANCE_SECONDS:
            return bounds[0]
        return bounds[1] if self._own - bounds[1] > TOLERANCE_SECONDS else self._own

    def _take(self, bounds: Bounds) -> None:
        self._least, self._most = bounds
        self._epoch = self._nearest(bounds)
        self._doubtful, self._agreeing = None, 0

    def _doubt(self, bounds: Bounds) -> None:
        """Wait for others that say so."""
        known = self._doubtful or bounds
        both = max(known[0], bounds[0]), min(known[1], bounds[1])
        agrees = both[0] <= both[1]
        self._doubtful = both if agrees else bounds
        self._agreeing = self._agreeing + 1 if agrees else 1
        if self._agreeing >= CONFIRMED_BY:
            log.warning("the API server's clock was set", seconds=round(self._doubtful[0] - self._least, 1))
            self._take(self._doubtful)


SERVER_TIME: Final = ServerTime()
"""Of this process, which speaks to one API server."""
