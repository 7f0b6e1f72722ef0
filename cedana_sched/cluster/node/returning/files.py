"""Waits for files that others make, by inotify, or by looking where the node has none left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from asyncinotify import Inotify, Mask

from cedana_sched.runtime.shortages import SHORTAGES

T = TypeVar("T")

_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF


HOST_MOUNTS = Path("/proc/1/mounts")


LOOK_SECONDS = 0.5


class Changes:
    """What is made in folders, from when they are added; a context manager.

    Whoever waits looks again after each `wait`, whether something has changed or not: where others have all instances
    or watches of this user, it only returns now and then.
    """

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        with contextlib.suppress(OSError):
            self._inotify = Inotify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            self._inotify.close()

    def add(self, folder: Path, mask: Mask) -> None:
        """Watch a folder.

        Raises:
            OSError: there is no such folder.
        """
        if self._inotify is None:
            return
        try:
            self._inotify.add_watch(folder, mask)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            self._inotify.close()
            self._inotify = None

    async def wait(self) -> None:
        """Return when something was made, or now and then."""
        if self._inotify is None:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            await self._inotify.get()


async def wait_for_path(path: Path, mounts: Path = HOST_MOUNTS) -> None:
    """Return when there is a file or folder of that name; folders above it may be missing, too.

    A link of that name counts, wherever it leads: who writes there may lead it to where a look never returns.

    A folder above it may also be mounted over, which is no event of the one below: so the table of
    `mounts` is watched as well.
    """
    while not os.path.lexists(path):  # noqa: ASYNC240 - a look at local names
        nearest = _nearest(path)
        with Changes() as changes, _mounting(mounts) as mounted:
            try:
                changes.add(nearest, _MADE)
            except FileNotFoundError:
                continue  # it went meanwhile
            if not os.path.lexists(path) and _nearest(path) == nearest:  # noqa: ASYNC240
                await _first(changes.wait(), mounted.wait())


@contextlib.contextmanager
def _mounting(table: Path) -> Iterator[asyncio.Event]:
    """An event that is set when something is mounted or unmounted, from the beginning of the block on (proc(5))."""
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    with table.open("rb") as file, select.epoll() as waiter:
        waiter.register(file, select.EPOLLPRI)

        def look() -> None:
            waiter.poll(0)
            changed.set()

        loop.add_reader(waiter.fileno(), look)
        try:
            yield changed
        finally:
            loop.remove_reader(waiter.fileno())


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Return when one of them has; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_result(folder: Path, look: Callable[[], T | None]) -> T:
    """Return what `look` finds, once it finds something; it is called again whenever a file is moved into `folder`."""
    with Changes() as changes:
        changes.add(folder, Mask.MOVED_TO | Mask.CREATE)
        while (found := look()) is None:
            await changes.wait()
        return found


def _nearest(path: Path) -> Path:
    """The deepest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())
