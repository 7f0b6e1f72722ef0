"""Waits for changes to files of folders: by inotify, or by polling if inotify is unavailable.

All of a node's containers that run as root share one limit of inotify instances, 128 by default: one pod may exhaust
it. An exhausted limit must delay a restored pod by no more than moments. Standard library only.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Self

from cedana_sched.runtime_handler.kernel import ALL_CHANGES, inotify_watch, read_changed_names

LOOK_SECONDS = 0.2

_Seen = dict[tuple[str, str], tuple[int, int, int]]
"""By folder and name: values that differ for another file, or other content."""


class FileWatcher:
    """Watches these folders from now on; a context manager."""

    def __init__(self, *folders: str, events: int = ALL_CHANGES) -> None:
        self._folders = folders
        self._descriptor: int | None = None
        try:
            self._descriptor = inotify_watch(*folders, events=events)
        except OSError:  # poll instead, whatever the reason
            self._seen = self._scan_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def wait(self, seconds: float) -> list[str]:
        """Wait for a change since the last call; return the names of files, or none after the timeout."""
        deadline = time.monotonic() + seconds
        if self._descriptor is not None:
            waiter = select.poll()
            waiter.register(self._descriptor, select.POLLIN)
            return list(read_changed_names(self._descriptor)) if waiter.poll(max(0.0, seconds) * 1000) else []
        while not (names := self._changed_names_since_scan()) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(LOOK_SECONDS, left))
        return names

    def _changed_names_since_scan(self) -> list[str]:
        now, before = self._scan_folders(), self._seen
        self._seen = now
        return [key[1] for key in {**before, **now} if before.get(key) != now.get(key)]

    def _scan_folders(self) -> _Seen:
        found: _Seen = {}
        for folder in self._folders:
            with suppress(OSError), os.scandir(folder) as entries:  # gone, or not readable now
                for entry in entries:
                    with suppress(FileNotFoundError):
                        of = entry.stat(follow_symlinks=False)
                        found[folder, entry.name] = (of.st_ino, of.st_mtime_ns, of.st_size)
        return found
