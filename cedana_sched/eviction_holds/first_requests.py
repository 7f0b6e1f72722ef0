"""Time of the first request per key: the only state that a replica keeps itself; it may lose it at any time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 4_096
KEPT_SECONDS = 900.0


class FirstRequests:
    """First-request times, bounded in number and in age.

    Args:
        clock: monotonic seconds.
        most: maximum number of keys.
        kept_seconds: age after which a request counts as the first one again.
        longest_gap_seconds: between two requests of a key; after a longer gap, a request counts as the first one again.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = MOST,
        kept_seconds: float = KEPT_SECONDS,
        longest_gap_seconds: float = math.inf,
    ) -> None:
        self._clock = clock
        self._most = most
        self._kept_seconds = kept_seconds
        self._longest_gap_seconds = longest_gap_seconds
        self._since: OrderedDict[Hashable, float] = OrderedDict()
        self._last: dict[Hashable, float] = {}

    def seconds_since_first(self, key: Hashable, *, remember: bool = True) -> float:
        """Return the seconds since the key's first request; 0 if none is recorded."""
        now = self._clock()
        self._forget_expired(now)
        if now - self._last.get(key, now) > self._longest_gap_seconds:
            del self._since[key], self._last[key]
        since = self._since.get(key, now)
        if remember:
            self._since.setdefault(key, since)
            self._last[key] = now
            while len(self._since) > self._most:
                self._drop_oldest()
        return now - since

    def __len__(self) -> int:
        return len(self._since)

    def _forget_expired(self, now: float) -> None:
        while self._since and now - next(iter(self._since.values())) > self._kept_seconds:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._since.popitem(last=False)
        self._last.pop(key, None)
