"""Limit of concurrent calls: bounds their memory, whatever the number of callers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CallLimit:
    """Admits calls without queueing.

    Args:
        calls: maximum number of calls.
        size: maximum bytes of all admitted calls.
    """

    def __init__(self, calls: int, size: int) -> None:
        self._calls = calls
        self._size = size

    @contextmanager
    def admit_call(self, size: int) -> Iterator[bool]:
        """Admit a call of `size` bytes inside the block; yields whether it is admitted."""
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
