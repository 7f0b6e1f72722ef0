"""Reads during short outages of the store: retried for a bounded time, and logged.

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
from cedana_sched.retrying import STORE

PATIENCE_SECONDS = 120.0
"""From the first attempt of one read to the start of its last."""

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
        wait=STORE,
        stop=tenacity.stop_before_delay(PATIENCE_SECONDS),
        sleep=pause,
        before_sleep=_tell,
        reraise=True,
    )
    return attempts(read)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _log.info("store_read_again", attempt=state.attempt_number, why=str(error))
