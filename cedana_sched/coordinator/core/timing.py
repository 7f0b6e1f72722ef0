"""The core's internal intervals, in seconds. User-facing deadlines are in `CheckpointPolicy`."""

from __future__ import annotations

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals with defaults for a cluster; tests shorten them."""

    resend: float = 30.0
    """Interval before an unanswered order is repeated; doubles up to `resend_most`."""
    resend_most: float = 300.0
    lost: float = 1.0
    """The same for an order known to be lost."""
    retry: float = 1.0
    """Backoff after the first failed, retryable attempt; doubles up to `retry_most`."""
    retry_most: float = 60.0
    confirm: float = 120.0
    """How long past its deadline an irreversible step (kill, abort) waits for the node's answer."""
    patience: float = 60.0
    """How long after the last release of its evictions a doomed workload may stay frozen without being deleted."""
    remember: float = 3600.0
    """Retention of terminal records; at least until their deadline."""

    remember_deaths: float = 7 * 86_400.0
    """The same for an identity's last restore with quick failures; a later restore takes those over."""

    def pause(self, attempt: int) -> float:
        """Return the backoff in seconds after failed attempt number `attempt` (from 1)."""
        return float(min(self.retry * 2.0 ** min(attempt - 1, 30), self.retry_most))

    def pause_within(self, attempt: int, seconds_left: float) -> float | None:
        """Return the backoff, at most half of the time left until a deadline; None if too little is left to retry."""
        pause = min(self.pause(attempt), seconds_left / 2)
        return pause if pause >= self.retry else None
