"""When somebody asked first: the only thing that a replica remembers by itself, and it may forget it at any time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 4_096
KEPT_SECONDS = 900.0


class FirstRequests:
    """Bounded in number and in age.

    Args:
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float], *, most: int = MOST, kept_seconds: float = KEPT_SECONDS) -> None:
        self._clock = clock
        self._most = most
        self._kept_seconds = kept_seconds
        self._since: OrderedDict[Hashable, float] = OrderedDict()

    def waited(self, key: Hashable, *, remember: bool = True) -> float:
        """Seconds since the first request of this key, which is now when none is known."""
        now = self._clock()
        self._forget(now)
        since = self._since.get(key, now)
        if remember:
            self._since.setdefault(key, since)
            while len(self._since) > self._most:
                self._since.popitem(last=False)
        return now - since

    def __len__(self) -> int:
        return len(self._since)

    def _forget(self, now: float) -> None:
        while self._since and now - next(iter(self._since.values())) > self._kept_seconds:
            self._since.popitem(last=False)
