"""Bounded retries with backoff, logged, for reads during short outages of the store.

A restore makes thousands of reads. If one failure failed the restore, an outage of seconds would discard everything
fetched so far; the deadline of the restore bounds how often the whole restore is attempted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
import tenacity

from cedana_sched.model.errors import StoreUnavailableError

PATIENCE_SECONDS = 120.0
"""From the first attempt of one read to the start of its last."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0

pause = time.sleep

R = TypeVar("R")

_log = structlog.get_logger(__name__)


def read_patiently(read: Callable[[], R]) -> R:
    """Call `read`, with retries while the store is unavailable.

    Raises:
        StoreUnavailableError: the store was unavailable for too long. Any other error of `read` is raised at once.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(StoreUnavailableError),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
        stop=tenacity.stop_after_delay(PATIENCE_SECONDS),
        sleep=pause,
        before_sleep=_tell,
        reraise=True,
    )
    return attempts(read)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _log.info("store_read_again", attempt=state.attempt_number, why=str(error))
