"""Backoff of preemptions: how long a job is not preempted, so that conflicting rules cannot preempt in cycles.

Kueue's rules allow rare cycles (a takes from b by quota, b from c by priority, c from a by share). No work is lost
when the victims are dumped and restored, but each round has a cost, so rounds must become rare.
"""

from __future__ import annotations

FREE_PREEMPTIONS = 3
FIRST_BACKOFF_SECONDS = 30.0
LONGEST_BACKOFF_SECONDS = 960.0


def protection_seconds(preemptions: int) -> float:
    """Return how long a job that was preempted this many times keeps a new place: 0 for the first three."""
    if preemptions <= FREE_PREEMPTIONS:
        return 0.0
    return backoff_seconds(preemptions - FREE_PREEMPTIONS)


def backoff_seconds(refusals: int) -> float:
    """Return 30 s after the first refusal (a snapshot that could not be taken), doubling up to 16 minutes."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(refusals - 1, 10))
