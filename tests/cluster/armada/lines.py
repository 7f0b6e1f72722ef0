"""Waits for what a service says in its log."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from asyncinotify import Inotify, Mask

from tests.cluster.errors import ClusterError
from tests.cluster.patience import patient


class Lines:
    """The lines of a log from now on; the file need not exist yet, its folder must.

    Args:
        log: of a service.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0

    async def wait_for(self, pattern: str, *, within: float) -> str:
        """Return the first line from here on in which a regular expression is found; the next call goes on after it.

        Raises:
            ClusterError: there was none within so many seconds.
        """
        wanted = re.compile(pattern)
        with Inotify() as changes:
            changes.add_watch(self._log.parent, Mask.CREATE | Mask.MODIFY)
            try:
                async with asyncio.timeout(patient(within)):
                    while True:
                        if (line := self._next(wanted)) is not None:
                            return line
                        await changes.get()
            except TimeoutError:
                raise ClusterError(
                    f"{self._log.stem} did not say {pattern!r} within {within:.0f} s",
                    log=self._log,
                    remedy="see its log, and whether the machine is overloaded",
                ) from None

    def _next(self, wanted: re.Pattern[str]) -> str | None:
        if not self._log.exists():
            return None
        with self._log.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._offset += len(line)
                text = line.decode(errors="replace").rstrip()
                if wanted.search(text):
                    return text
        return None
