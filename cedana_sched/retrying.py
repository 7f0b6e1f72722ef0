"""Pauses between attempts: exponential, with full jitter, in the bounds of a named profile.

Whole clusters of clients lose the API server, or the store, in one moment; they must not all be back in one moment too.
So each pause is random, between the profile's `min`, without which a loop could be tight, and a bound that doubles from
`multiplier` up to `max`, all in seconds. `random.seed` makes them repeatable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
import tenacity

log = structlog.get_logger(__name__)

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

Profile = tenacity.wait_random_exponential

AWAITED: Final = Profile(min=0.05, multiplier=0.2, max=5)
"""For what few call at a time, or each node calls on itself: an eviction may wait, and a preStop hook does for 15 s."""
API_CALLS: Final = Profile(min=0.05, multiplier=0.2, max=15)
"""For calls about one object, which each node makes: a restarted API server gets them spread over seconds."""
STORE: Final = Profile(min=0.05, multiplier=0.2, max=10)
"""For reads of a restore: many threads of each node make them, and the deadline of the restore runs."""
WATCHES: Final = Profile(min=0.1, multiplier=0.2, max=30)
"""For watches, and what consists of watches: each attempt may list all objects of a kind."""
CHORES: Final = Profile(min=0.5, multiplier=1, max=60)
"""For what is wanted some time, and may fail for hours: a full disk, a process that the kernel holds."""

_NOT_RUN = tenacity.Retrying()
"""The states that profiles take name one."""


class Backoff:
    """The pauses of one loop."""

    __slots__ = ("_profile", "failures")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.failures = 0
        """Consecutive."""

    def next_pause(self) -> float:
        """Return the seconds until the next attempt, after a failed one; to the millisecond, for the log."""
        self.failures += 1
        state = tenacity.RetryCallState(_NOT_RUN, None, (), {})
        state.attempt_number = self.failures
        return round(self._profile(state), 3)

    def reset(self) -> None:
        """Begin with the shortest pause again, after a success."""
        self.failures = 0


async def retry(
    what: str,
    call: Callable[[], Awaitable[T]],
    errors: type[E],
    *,
    profile: Profile = API_CALLS,
    on_failure: Callable[[str, E], None] = lambda what, error: None,  # noqa: ARG005
) -> T:
    """Call until none of `errors` is raised; return the result. Any other error propagates.

    Args:
        what: for the log.
        call: one attempt.
        errors: of attempts that are repeated, each with a line in the log.
        profile: of the pauses.
        on_failure: receives `what` and the error of each such attempt.
    """
    backoff = Backoff(profile)
    while True:
        try:
            return await call()
        except errors as error:
            pause = backoff.next_pause()
            log.warning("failed, tried again", what=what, error=str(error), pause_seconds=pause)
            on_failure(what, error)
        await asyncio.sleep(pause)
