"""The API server's time of day, which is the same for whoever asks it: times that one machine writes and another reads.

Deadlines, eviction marks and releases are written by one component and compared by another, on a machine whose clock
may be half a minute apart. Every answer of the API server carries its time (`Date`, whole seconds), so that each
process knows how far its own clock is off, and corrects it by just so much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

TOLERANCE_SECONDS: Final = 1.0
"""What is not more apart is left as it is: less than that the `Date` cannot tell."""


class ServerTime:
    """How far a clock is from the API server's.

    Args:
        clock: seconds since the epoch, by this machine.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._least, self._most = float("-inf"), float("inf")
        """Bounds of the server's clock less ours, in seconds."""

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
        least, most = told - self._clock(), told + 1.0 - sent
        self._least, self._most = max(self._least, least), min(self._most, most)
        if self._least > self._most:  # one of the clocks was set
            self._least, self._most = least, most

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


SERVER_TIME: Final = ServerTime()
"""Of this process, which speaks to one API server."""
