"""Waits for files that other processes create."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asyncinotify import Mask

from cedana_sched.component.folder_watches import LOOK_SECONDS, shared_folder_watches

T = TypeVar("T")

_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF


HOST_MOUNTS = Path("/proc/1/mounts")


async def wait_for_path(path: Path, mounts: Path = HOST_MOUNTS) -> None:
    """Return when a file or folder of that name exists; folders above it may be missing, too.

    A symbolic link of that name counts, whatever its target: a tenant may point it to where a stat never returns.

    A folder above it may also be mounted over, which is no event of the folder below: so the table of `mounts` is
    watched as well.
    """
    while not os.path.lexists(path):  # noqa: ASYNC240 - a look at local names
        nearest = _nearest_existing_folder(path)
        with shared_folder_watches().open_waiter() as changes, _watch_mounts(mounts) as mounted:
            try:
                changes.add(nearest, _MADE)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            if not os.path.lexists(path) and _nearest_existing_folder(path) == nearest:  # noqa: ASYNC240
                await _run_until_first(changes.wait(), mounted.wait())


@contextlib.contextmanager
def _watch_mounts(table: Path) -> Iterator[asyncio.Event]:
    """Yield an event that is set at the next mount or unmount, from the start of the block on (proc(5)).

    If pods have used up this user's epoll watches, the event is set after a second.
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


async def _run_until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Return when one of them has; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_result(folder: Path, look: Callable[[], T | None]) -> T:
    """Return the first result of `look` that is not None; `look` is repeated when a file is moved into `folder`."""
    with shared_folder_watches().open_waiter() as changes:
        changes.add(folder, Mask.MOVED_TO | Mask.CREATE)
        while (found := look()) is None:
            await changes.wait()
        return found


def _nearest_existing_folder(path: Path) -> Path:
    """Return the deepest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())
