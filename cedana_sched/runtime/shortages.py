"""What a node lacks for a moment, files or memory or room, is waited out: it says nothing about a snapshot.

Before anything of a container has been restored, nothing is lost by waiting, and its work by beginning anew. Standard
library only.
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


def wait_out(act: Callable[[], T], seconds: float) -> T:
    """Return what `act` returns, which is called again after an OSError or a MemoryError.

    Raises:
        OSError, MemoryError: so it still ends after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return act()
        except (OSError, MemoryError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_SECONDS)
