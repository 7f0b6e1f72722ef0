"""Retries of indispensable requests until one succeeds, whatever errors the API server returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
import tenacity

from cedana_sched.kube.errors import ApiError

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 15.0

T = TypeVar("T")


async def until_answered(
    what: str, call: Callable[[], Awaitable[T]], refused: Callable[[str], None] = lambda _: None
) -> T:
    """Call until no ApiError is raised; return the result.

    Args:
        what: for the log.
        call: one attempt.
        refused: receives the reason of each failed attempt, for `/readyz`.
    """

    def say(state: tenacity.RetryCallState) -> None:
        problem = str(state.outcome.exception()) if state.outcome is not None else ""
        log.warning("refused, tried again", what=what, problem=problem, pause_seconds=round(state.upcoming_sleep, 2))
        refused(f"{what}: {problem}")

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ApiError),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
        before_sleep=say,
        reraise=True,
    )
    async for attempt in attempts:  # if called, tenacity awaits only coroutine functions
        with attempt:
            return await call()
    raise AssertionError("attempts never end")
