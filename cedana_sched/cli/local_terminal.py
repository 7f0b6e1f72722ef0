"""The user's own terminal while it shows another one: raw, and as before at the end, whatever happens."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def raw_terminal(descriptor: int) -> Iterator[None]:
    """Pass every key on uninterpreted inside the block. Does nothing to what is no terminal."""
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # keeps what was typed ahead
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def window_size(descriptor: int) -> tuple[int, int] | None:
    """Return rows and columns; None for what is no terminal, or has no size."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return (size.lines, size.columns) if size.lines and size.columns else None


def write_fully(data: bytes) -> None:
    """Write to standard output at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
