"""Processes by PID *and* start time: a PID alone may belong to somebody else by the time it is used.

Called by the supervisor and the runtime. Standard library only.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from cedana_sched.runtime.same_process import open_running, runs

_START_TIME = 19  # proc(5), /proc/PID/stat field 22, counted after the command's name


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
        """A pidfd of this very process, or None when it has ended, whoever has its PID now."""
        return open_running(self.pid, self.start) if self.boot == _boot_id() else None

    def alive(self) -> bool:
        """Whether any of its threads runs."""
        return self.boot == _boot_id() and runs(self.pid, self.start)

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
