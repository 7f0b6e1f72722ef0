"""Processes by PID *and* start time: a PID alone may belong to somebody else by the time it is used.

Called by the supervisor and the runtime. Standard library only.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_START_TIME = 19  # proc(5), /proc/PID/stat field 22, counted from the field after the command's name


class ProcessId(NamedTuple):
    """One process of this boot. `start` is in clock ticks since boot; `boot` tells boots apart."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Name a running process.

        Raises:
            ProcessLookupError: there is none.
        """
        return cls(pid, _start_time(pid), _boot_id())

    def open(self) -> int | None:
        """A pidfd of this very process, or None when it is gone, whoever has its PID now. A zombie has one."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self == _current(self.pid):  # checked after opening: from here on the descriptor cannot change its mind
            return descriptor
        os.close(descriptor)
        return None

    def alive(self) -> bool:
        """Whether it exists and is not a zombie."""
        return self == _current(self.pid) and _state(self.pid) not in "ZX"

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone."""
        descriptor = self.open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def _current(pid: int) -> ProcessId | None:
    try:
        return ProcessId.of(pid)
    except ProcessLookupError:
        return None


def _start_time(pid: int) -> int:
    return int(_stat(pid)[_START_TIME])


def _state(pid: int) -> str:
    try:
        return _stat(pid)[0]
    except ProcessLookupError:
        return "X"


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
