"""The core's own intervals, in seconds. Deadlines that people choose are in `CheckpointPolicy`."""

from __future__ import annotations

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults suit a cluster; tests shorten them."""

    resend: float = 30.0
    """An order without an answer is repeated after this long, then after twice as long, up to `resend_most`."""
    resend_most: float = 300.0
    lost: float = 1.0
    """The same for an order that is known to be lost."""
    retry: float = 1.0
    """Pause after the first failed attempt that may be repeated; doubles up to `retry_most`."""
    retry_most: float = 60.0
    confirm: float = 120.0
    """How long past its deadline a step that cannot be taken back (kill, abort) waits for the node's answer."""
    patience: float = 60.0
    """How long after the last release of its evictions a workload that is to end may stay undeleted, frozen."""
    remember: float = 3600.0
    """How long settled records are kept, or until their deadline, whichever is later."""

    remember_deaths: float = 7 * 86_400.0
    """The same for the last return of an identity whose program failed soon after it; a later one takes that over."""

    def pause(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number `attempt` (counts from 1)."""
        return float(min(self.retry * 2.0 ** min(attempt - 1, 30), self.retry_most))

    def pause_within(self, attempt: int, seconds_left: float) -> float | None:
        """The same, and no more than half of what is left until a deadline; None: too little is left to try again."""
        pause = min(self.pause(attempt), seconds_left / 2)
        return pause if pause >= self.retry else None
