"""Processes by PID *and* start time: a PID alone may belong to somebody else by the time it is used.

Called by the supervisor and the runtime. Standard library only.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_STATE, _START_TIME = 0, 19  # proc(5), /proc/PID/stat fields 3 and 22, counted after the command's name


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
        return cls(pid, int(_stat(pid)[_START_TIME]), _boot_id())

    def open(self) -> int | None:
        """A pidfd of this very process, or None when it is gone or a zombie, whoever has its PID now."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.alive():  # checked after opening: from here on the descriptor cannot change its mind
            return descriptor
        os.close(descriptor)
        return None

    def alive(self) -> bool:
        """Whether it exists and is not a zombie."""
        try:
            stat = _stat(self.pid)
        except ProcessLookupError:
            return False
        return self == ProcessId(self.pid, int(stat[_START_TIME]), _boot_id()) and stat[_STATE] not in "ZX"

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


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
