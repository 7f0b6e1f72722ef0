"""CRIU is struck the moment its first memory has come, which is the same moment however busy the machine is."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.processes import naming, words_of

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory


class StrikingSink:
    """Takes what a laboratory's CRIU writes, but strikes it first; no byte of memory is taken until that is done.

    Args:
        lab: of the job that is dumped.
        strike: is called once, with the number of CRIU's process.
    """

    def __init__(self, lab: Laboratory, strike: Callable[[int], None]) -> None:
        self._lab = lab
        self._strike = strike
        self._lock = threading.Lock()
        self._has_struck = False

    def open_stream(self, name: str) -> StrikingSink:
        return self

    def write(self, data: memoryview) -> None:
        with self._lock:
            if len(data) > 1 << 20 and not self._has_struck:
                self._has_struck = True
                self._strike(criu_of(self._lab))

    def close(self) -> None:
        pass


def kill(pid: int) -> None:
    """Kill a process and wait for its end."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], 60)
        assert ended, f"process {pid} is still there"
    finally:
        os.close(descriptor)


def stop(pid: int) -> None:
    """Stop a process, as a debugger would."""
    os.kill(pid, signal.SIGSTOP)


def criu_of(lab: Laboratory) -> int:
    """The CRIU that dumps this laboratory's job: the process whose log lies in its folder."""
    found = [process.pid for process in naming(lab.folder) if "dump" in words_of(process)]
    assert found, "no CRIU runs"
    return min(found)  # it forks helpers of the same words
