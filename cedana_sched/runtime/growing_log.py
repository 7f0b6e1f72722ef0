"""CRIU's log at run time: its beginning and its end are kept, and little of it is read at once.

CRIU writes a line for each mapping, file and thread of a workload, so the workload determines the log's size. The part
between the beginning, which has the run id, and the end, which has the errors, is punched out of the file: no component
reads it, and offsets in the file stay valid. Standard library only.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from cedana_sched.runtime.kernel import punch_hole

KEPT_BYTES: Final = 4 << 20
"""Bytes kept of the beginning, and at least as many of the end."""
TRIMMED_BYTES: Final = 64 << 20
"""The part in between is punched out whenever it has grown by so many bytes."""
MOST_READ: Final = 1 << 20
"""Bytes read of the new part, at its end."""


class GrowingLog:
    """One log; `read_new` must be called every few seconds."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self._trimmed = KEPT_BYTES

    def read_new(self) -> bytes:
        """Return what was written since the last call, or its end; empty if there is no log yet."""
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
            if error.errno != errno.EOPNOTSUPP:  # as on NFS before 4.2: there the log keeps its size
                raise
        self._trimmed = end
