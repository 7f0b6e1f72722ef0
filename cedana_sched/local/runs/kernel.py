"""Two Linux calls that Python 3.11 does not wrap: the child subreaper and inotify. Standard library only.

A failed call raises OSError; the message names the call.
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
    """Make this process the parent of every descendant whose own parent dies."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def inotify_open() -> int:
    """Return a descriptor that becomes readable on an event in a watched directory; non-blocking, close-on-exec."""
    return _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def inotify_watch(descriptor: int, directory: Path, events: int) -> int:
    """Watch a directory for `events` (IN_*); returns the watch descriptor."""
    done = _libc.inotify_add_watch(descriptor, os.fsencode(directory), events | _IN_ONLYDIR)
    return _check(done, f"inotify watch of {directory}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
