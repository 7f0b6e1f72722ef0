"""Processes by PID *and* start time, because the kernel reuses PIDs. Standard library only."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from cedana_sched.runtime_handler.same_process import is_running, open_running, start_time_of


class ProcessId(NamedTuple):
    """One process of one boot. `start` is in clock ticks since boot; `boot` is the kernel's boot id."""

    pid: int
    start: int
    boot: str

    @classmethod
    def from_pid(cls, pid: int) -> ProcessId:
        """Return the id of a running process.

        Raises:
            ProcessLookupError: no process has the PID.
        """
        if (start := start_time_of(pid)) is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, start, _boot_id())

    def open_pidfd(self) -> int | None:
        """Return a pidfd of this process; None if the process has ended, even if its PID was reused."""
        return open_running(self.pid, self.start) if self.boot == _boot_id() else None

    def alive(self) -> bool:
        """Whether any thread of the process runs."""
        return self.boot == _boot_id() and is_running(self.pid, self.start)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process is gone."""
        descriptor = self.open_pidfd()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
