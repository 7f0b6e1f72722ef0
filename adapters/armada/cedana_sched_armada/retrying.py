"""Retries with exponential backoff; each failure is logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import tenacity

from cedana_sched.model.errors import CedanaSchedError

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 15.0


async def until_done(
    what: str,
    work: Callable[[], Awaitable[None]],
    *,
    longest: float = LONGEST_PAUSE_SECONDS,
    failed: Callable[[CedanaSchedError], None] | None = None,
) -> None:
    """Retry `work` until it succeeds; an exception other than `CedanaSchedError` propagates.

    Args:
        what: for the log.
        work: one attempt.
        longest: maximum seconds between two attempts.
        failed: called with every failure.
    """

    def say(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        pause = round(state.upcoming_sleep, 2)
        log.warning("failed, tried again", what=what, problem=str(error), pause_seconds=pause)
        if failed is not None and isinstance(error, CedanaSchedError):
            failed(error)

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(CedanaSchedError),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=longest),
        before_sleep=say,
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            await work()
