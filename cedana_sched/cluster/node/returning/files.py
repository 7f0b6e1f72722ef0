"""Waits for files that others make, told by the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from asyncinotify import Inotify, Mask

T = TypeVar("T")

_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF


async def appears(path: Path) -> None:
    """Return when there is a file or folder of that name; folders above it may be missing, too."""
    while not path.exists():  # noqa: ASYNC240 - a look at local names
        nearest = _nearest(path)
        with Inotify() as inotify:
            try:
                inotify.add_watch(nearest, _MADE)
            except FileNotFoundError:
                continue  # it went meanwhile
            if not path.exists() and _nearest(path) == nearest:  # noqa: ASYNC240
                await inotify.get()


async def until(folder: Path, look: Callable[[], T | None]) -> T:
    """Return what `look` finds, once it finds something; it is asked again whenever a file is moved into `folder`."""
    with Inotify() as inotify:
        inotify.add_watch(folder, Mask.MOVED_TO | Mask.CREATE)
        while (found := look()) is None:
            await inotify.get()
        return found


def _nearest(path: Path) -> Path:
    """The deepest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())
