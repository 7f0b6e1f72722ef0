"""What a piece of work costs: seconds of CPU of a process and all that it waited for, and its peak of memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.processes import family, words_of

_SAMPLE_SECONDS = 0.05


class Costs:
    """Filled in when the block that measures is left."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


@contextlib.contextmanager
def measure(root: int, but_not: str = "") -> Iterator[Costs]:
    """Measure a process and its descendants; those whose command line holds `but_not` are somebody else's."""
    costs, done = Costs(), threading.Event()
    sampler = threading.Thread(target=_sample, args=(root, but_not, costs, done))
    began, cpu = time.monotonic(), _cpu_seconds(root)
    sampler.start()
    try:
        yield costs
    finally:
        costs.seconds = time.monotonic() - began
        done.set()
        sampler.join()
        costs.cpu_seconds = _cpu_seconds(root) - cpu


def _cpu_seconds(root: int) -> float:
    """Of a process, and of all children that it has waited for, or that still run."""
    total = 0.0
    for process in _family(root, ""):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def _sample(root: int, but_not: str, costs: Costs, done: threading.Event) -> None:
    while not done.wait(_SAMPLE_SECONDS):
        resident = sum(_resident_bytes(process.pid) for process in _family(root, but_not))
        costs.peak_bytes = max(costs.peak_bytes, resident)


def _family(root: int, but_not: str) -> list[psutil.Process]:
    return [one for one in family(root) if not but_not or but_not not in " ".join(words_of(one))]


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0  # it ended meanwhile
