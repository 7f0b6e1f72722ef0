"""Signs of progress of a running CRIU: whether it, or a process that it creates or seizes, has recently been active.

A sign is any of: a line in CRIU's log that is not among its recent ones (CRIU repeats lines when it retries), a busy
core, many bytes read or written, a process that changes its state.

CRIU writes a line for each mapping, file and thread of a workload, so the workload determines the log's size. Little
of it is read at once. Its beginning, which has the run id, and its end, which has the errors, are kept; the part in
between is punched out of the file: no component reads it, and offsets in the file stay valid.

Standard library only: the handler runs on the host.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from cedana_sched.runtime_handler.kernel import punch_hole

STALL_SECONDS = 30.0
"""Seconds without progress after which CRIU is ended, whatever timeout the policy allows."""
LOOKS = 10
"""Polls within that time: most signs have no notification."""
KEPT_BYTES: Final = 4 << 20
"""Bytes kept of the beginning of CRIU's log, and at least as many of the end."""
TRIMMED_BYTES: Final = 64 << 20
"""The part in between is punched out whenever it has grown by so many bytes."""
MOST_READ: Final = 1 << 20
"""Bytes read of the log's new part, at its end."""

_BUSY = 0.2  # of a core: a retry loop uses less
_MUCH_BYTES = 1 << 20  # a retry loop reads a few files
_LINES_KNOWN = 1000
_STAMP = re.compile(rb"^\(\d+\.\d+\)\s*")
_TICKS = os.sysconf("SC_CLK_TCK")


class ProgressSigns:
    """Signs of one CRIU, whose own state is ignored: it sleeps and wakes while it waits."""

    def __init__(self, leader: int, log: str, processes: Callable[[], Collection[int]]) -> None:
        """Watch the tree of `leader`, which is CRIU, or its parent."""
        self._leader = leader
        self._log = GrowingLog(log)
        self._processes = processes
        self._lines: deque[bytes] = deque(maxlen=_LINES_KNOWN)
        self._states: dict[int, str] = {}
        self._ticks: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self._looked = time.monotonic()

    def has_progressed(self) -> bool:
        """Return whether there was a sign since the last call."""
        now = time.monotonic()
        seconds, self._looked = now - self._looked, now
        signs = (self._has_logged(), self._has_worked(seconds), self._has_moved_bytes())
        return any(signs)

    def _has_logged(self) -> bool:
        lines = {_STAMP.sub(b"", line) for line in self._log.read_new().splitlines()}
        new = lines.difference(self._lines)
        self._lines.extend(new)
        return bool(new)

    def _has_worked(self, seconds: float) -> bool:
        states, ticks = {}, {}
        for pid in {self._leader, *self._processes()}:
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file,  # a process may have any name
            ):
                name, _, rest = file.read().rpartition(")")
                fields = rest.split()
                ticks[pid] = sum(map(int, fields[11:15]))  # its own and its children's, user and system
                if pid != self._leader and not name.endswith("(criu"):
                    states[pid] = fields[0]
        used = sum(spent - self._ticks.get(pid, spent) for pid, spent in ticks.items())
        has_changed = states != self._states
        self._ticks, self._states = ticks, states
        return has_changed or used > _BUSY * seconds * _TICKS

    def _has_moved_bytes(self) -> bool:
        """Return whether bytes moved: memory restored from slow storage causes neither a busy core nor a log line."""
        moved = {}
        for pid in {self._leader, *self._processes()}:
            with suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:  # may have ended
                moved[pid] = sum(int(line.split()[1]) for line in file.read().splitlines()[:2])  # rchar, wchar
        since = sum(count - self._moved.get(pid, count) for pid, count in moved.items())
        self._moved = moved
        return since > _MUCH_BYTES


class GrowingLog:
    """One log of CRIU's; `read_new` must be called every few seconds."""

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
