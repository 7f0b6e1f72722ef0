"""Waits for files that others make."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asyncinotify import Mask

from cedana_sched.service.watches import LOOK_SECONDS, watches

T = TypeVar("T")

_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF


HOST_MOUNTS = Path("/proc/1/mounts")


async def wait_for_path(path: Path, mounts: Path = HOST_MOUNTS) -> None:
    """Return when there is a file or folder of that name; folders above it may be missing, too.

    A link of that name counts, wherever it leads: who writes there may lead it to where a look never returns.

    A folder above it may also be mounted over, which is no event of the one below: so the table of
    `mounts` is watched as well.
    """
    while not os.path.lexists(path):  # noqa: ASYNC240 - a look at local names
        nearest = _nearest(path)
        with watches().changes() as changes, _mounting(mounts) as mounted:
            try:
                changes.add(nearest, _MADE)
            except FileNotFoundError:
                continue  # it went meanwhile
            if not os.path.lexists(path) and _nearest(path) == nearest:  # noqa: ASYNC240
                await _first(changes.wait(), mounted.wait())


@contextlib.contextmanager
def _mounting(table: Path) -> Iterator[asyncio.Event]:
    """An event that is set when something is mounted or unmounted, from the beginning of the block on (proc(5)).

    Where pods have taken all of epoll's watches of this user, it is set after a second.
    """
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    with table.open("rb") as file, select.epoll() as waiter:

        def look() -> None:
            waiter.poll(0)
            changed.set()

        try:
            waiter.register(file, select.EPOLLPRI)
            loop.add_reader(waiter.fileno(), look)
        except OSError:
            loop.call_later(LOOK_SECONDS, changed.set)
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
    with watches().changes() as changes:
        changes.add(folder, Mask.MOVED_TO | Mask.CREATE)
        while (found := look()) is None:
            await changes.wait()
        return found


def _nearest(path: Path) -> Path:
    """The deepest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())
