"""A Linux call that Python does not wrap: the child subreaper. Standard library only."""

from __future__ import annotations

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_child_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent dies.

    Raises:
        OSError: names the call.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
