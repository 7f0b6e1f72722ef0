"""Per-pod limits of the proxy: every process on the host network can call it, as the kubelet does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MOST_OF_A_POD: Final = 512
"""Maximum number of open calls for one token: the kubelet makes one per container, and may repeat it while the
previous one is still open; a protected pod has at most 256 containers."""
UNKNOWN_SECONDS: Final = 1.0
"""Delay of the response to a caller that names no pod of this node: limits the rate of guessing."""


class OpenCallLimits:
    """Counts open calls by token."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def count_call(self, token: str) -> Iterator[bool]:
        """Yield whether this pod may have another open call; if so, the call counts inside the block."""
        if self._open[token] >= MOST_OF_A_POD:
            yield False
            return
        self._open[token] += 1
        try:
            yield True
        finally:
            self._open[token] -= 1
            if not self._open[token]:
                del self._open[token]
