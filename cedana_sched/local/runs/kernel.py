"""Two Linux calls that Python 3.11 has no function for: the child subreaper and inotify. Standard library only.

A refused call raises OSError, whose message says what was asked of the kernel.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

IN_MOVED_TO = 0x80
_IN_ONLYDIR = 0x01000000
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_child_subreaper() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def inotify_open() -> int:
    """A descriptor that becomes readable when something happens in a watched directory; non-blocking, close-on-exec."""
    return _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def inotify_watch(descriptor: int, directory: Path, events: int) -> int:
    """Watch a directory for `events` (IN_*); returns the number by which its events are known."""
    done = _libc.inotify_add_watch(descriptor, os.fsencode(directory), events | _IN_ONLYDIR)
    return _check(done, f"inotify watch of {directory}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
