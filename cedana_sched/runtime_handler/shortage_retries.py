"""Retries during transient shortages of a node (files, memory, disk space), which do not indict a snapshot.

Before any process of a container is restored, waiting loses nothing, and a cold start its work. Standard library only.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

AGAIN_SECONDS = 0.2
SHORTAGES = frozenset({
    errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
})  # fmt: skip


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORTAGES)


def retry_through_shortage(act: Callable[[], T], seconds: float) -> T:
    """Return the result of `act`, retried after an OSError or a MemoryError.

    Raises:
        OSError, MemoryError: `act` still fails after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return act()
        except (OSError, MemoryError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_SECONDS)
