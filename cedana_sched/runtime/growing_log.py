"""CRIU's log while CRIU writes it: its beginning and its end are kept, and little of it is read at once.

CRIU writes a line for each mapping, file and thread of a workload, so a workload decides how long its log becomes. What
lies between the beginning, where the run id stands, and the end, where the errors stand, is given back to the file
system: nothing reads it, and positions in the file stay what they are. Standard library only.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from cedana_sched.runtime.kernel import punch_hole

KEPT_BYTES: Final = 4 << 20
"""Of the beginning, and at least as many of the end."""
TRIMMED_BYTES: Final = 64 << 20
"""What comes between is given back whenever it has grown by so many."""
MOST_READ: Final = 1 << 20
"""Of what is new, the end."""


class GrowingLog:
    """One log; `read_new` is called every few seconds."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self._trimmed = KEPT_BYTES

    def read_new(self) -> bytes:
        """What was written since the last call, or its end; empty where there is no log yet."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            size = os.fstat(descriptor).st_size
            self._trim(descriptor, size - KEPT_BYTES)
            start = max(min(self._read, size), size - MOST_READ)
            self._read = size
            return os.pread(descriptor, size - start, start)
        finally:
            os.close(descriptor)

    def _trim(self, descriptor: int, end: int) -> None:
        if end - self._trimmed < TRIMMED_BYTES:
            return
        try:
            punch_hole(descriptor, self._trimmed, end - self._trimmed)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # as on NFS before 4.2: there the log is as long as it is
                raise
        self._trimmed = end
