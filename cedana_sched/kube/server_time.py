"""The API server's time of day, which is the same for whoever asks it: times that one machine writes and another reads.

Deadlines, eviction marks and releases are written by one component and compared by another, on a machine whose clock
may be half a minute apart. Every answer of the API server carries its time (`Date`, whole seconds), so that each
process knows how far its own clock is off, and corrects it by just so much.

Deadlines that have passed are never taken back. So one answer does not move this time far, once it is known: others
must agree with it, unless it is this machine's own clock that was set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
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
"""Of the server's clock less ours, in seconds."""


class ServerTime:
    """How far a clock is from the API server's.

    Args:
        clock: seconds since the epoch, by this machine.
        monotonic: seconds that pass on this machine, whatever its clock is set to.
    """

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._least, self._most = float("-inf"), float("inf")
        self._epoch = clock() - monotonic()
        """What our clock showed when the other one began."""
        self._doubtful: Bounds | None = None
        """What the last answers say, which contradict the ones before."""
        self._agreeing = 0

    def sent(self) -> float:
        """The moment at which a request goes out; for `answered`."""
        return self._clock()

    def answered(self, date: str | None, sent: float) -> None:
        """An answer to what was `sent` then came now, with this `Date`; what cannot be read says nothing."""
        try:
            told = parsedate_to_datetime(date or "").timestamp()
        except (TypeError, ValueError):
            return
        # it was written between then and now, and its fraction of a second is cut off
        bounds = told - self._clock(), told + 1.0 - sent
        was_set = self._was_set()
        least, most = max(self._least, bounds[0]), min(self._most, bounds[1])
        if least <= most:
            self._take((least, most))
        elif was_set or least - most <= SUDDEN_SECONDS:
            self._take(bounds)
        else:
            self._doubt(bounds)

    @property
    def offset_seconds(self) -> float:
        """What is to be added to our clock; 0 as long as it may be right."""
        if self._least > TOLERANCE_SECONDS:
            return self._least
        return self._most if self._most < -TOLERANCE_SECONDS else 0.0

    def seconds(self) -> float:
        """Now, since the epoch."""
        return self._clock() + self.offset_seconds

    def now(self) -> datetime:
        """Now, in UTC."""
        return datetime.fromtimestamp(self._clock(), tz=UTC) + timedelta(seconds=self.offset_seconds)

    def _was_set(self) -> bool:
        """Whether somebody has set our own clock since the last answer."""
        before, self._epoch = self._epoch, self._clock() - self._monotonic()
        return abs(self._epoch - before) > TOLERANCE_SECONDS

    def _take(self, bounds: Bounds) -> None:
        self._least, self._most = bounds
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
