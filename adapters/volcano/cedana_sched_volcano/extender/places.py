"""How many calls are read and answered at once: what they take of our memory is bounded, whoever calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Places:
    """Says who gets one, at once: nobody waits for a place.

    Args:
        calls: how many there are.
        size: bytes of all that have one.
    """

    def __init__(self, calls: int, size: int) -> None:
        self._calls = calls
        self._size = size

    @contextmanager
    def taken(self, size: int) -> Iterator[bool]:
        """Whether a call of so many bytes has a place inside the block."""
        is_taken = self._calls > 0 and self._size >= size
        if not is_taken:
            yield False
            return
        self._calls -= 1
        self._size -= size
        try:
            yield True
        finally:
            self._calls += 1
            self._size += size
