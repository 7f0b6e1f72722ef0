"""The workload of the bench: memory that says when it ticks, so that every stop of it shows from outside."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workloads.memory.workload import LOG_FILE, hog_command

PERCENT_REWRITTEN = 5
_PATIENCE_SECONDS = 300.0


class HogLog:
    """What one hog has written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOG_FILE

    def ticks(self) -> list[float]:
        """Seconds since the epoch of every tick."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [int(line.split()[2]) / 1e9 for line in lines if line.startswith("tick ") and len(line.split()) == 3]

    def await_word(self, word: str, count: int = 1) -> None:
        """Wait until the hog has said `word` that many times."""
        self._await(lambda: sum(line.startswith(word) for line in self._lines()) >= count, f"{count} times {word!r}")

    def first_tick_after(self, moment: float) -> float:
        """Seconds since the epoch of the first tick after `moment`."""
        self._await(lambda: self.ticks()[-1:] > [moment], "a tick")
        return next(tick for tick in self.ticks() if tick > moment)

    def longest_pause(self, since: float) -> float:
        """The longest time between two ticks that follow each other, the later of them after `since`."""
        return max((b - a for a, b in itertools.pairwise(self.ticks()) if b > since), default=0.0)

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def _await(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the memory hog did not say {what}")
            time.sleep(0.01)  # another program's file is all there is to look at


@contextlib.contextmanager
def plain_hog(directory: Path, mebibytes: int) -> Iterator[int]:
    """A hog that is nobody's job: yields its PID once its memory is filled; kills it at the end."""
    command = hog_command(directory, mebibytes, percent=PERCENT_REWRITTEN)
    hog = subprocess.Popen(
        command.argv, cwd=directory, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        HogLog(directory).await_word("filled")
        yield hog.pid
    finally:
        hog.kill()
        hog.wait()
