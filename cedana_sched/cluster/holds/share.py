"""How much of the keeper one caller may have: every process on the node's network can call it, as the kubelet does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MOST_OF_A_POD: Final = 512
"""Calls that are open for one token: the kubelet makes one for each container, and may make it again while the one
before is open still; a protected pod has 256 containers at most."""
UNKNOWN_SECONDS: Final = 1.0
"""Whoever names no pod of this node waits so long for the answer: he tries no faster."""


class Shares:
    """Counts the calls that are open, by their tokens."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_more(self, token: str) -> Iterator[bool]:
        """Whether this pod may have another call open, which it has then inside the block."""
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
