"""What `make cluster-up` prints: each step when it begins to take time, and how long it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class _Output(Protocol):
    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...


class Steps:
    """Prints one line for every finished step; steps may overlap.

    Args:
        out: where the lines go.
    """

    def __init__(self, out: _Output | None = None) -> None:
        self._out = out or sys.stderr
        self._began = time.monotonic()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what happens inside; the line says when it ended, how long it took, and whether it failed."""
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self._line(f"{name}: failed after {time.monotonic() - began:.1f} s")
            raise
        self._line(f"{name}: {time.monotonic() - began:.1f} s")

    def say(self, sentence: str) -> None:
        """One line about what is going on."""
        self._line(sentence)

    def _line(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=self._out, flush=True)
