"""Keeps our runtime handler registered beside handlers that others add later.

Our drop-in repeats the CRI plugin's table, and containerd 1.7 takes that table whole from the last file: our copy would
hide later changes of others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from asyncinotify import Mask

from cedana_sched.cluster.node.installation.host import HostError
from cedana_sched.component.folder_watches import shared_folder_watches

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0
"""Quiet period: a program that changes containerd's configuration may write several files, and restart it; we come
after."""
_Written = dict[str, tuple[int, int, int]]
_WRITTEN = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class Registration(Protocol):
    """The registration to keep; see `Installation`."""

    async def configuration_folders(self) -> Iterable[Path]: ...
    async def renew_registration(self) -> None: ...


async def keep_registered(registration: Registration, quiet_seconds: float = QUIET_SECONDS) -> None:
    """Renew the registration whenever containerd's configuration has changed, until cancelled."""
    with shared_folder_watches().open_waiter() as changes:
        folders = tuple(await registration.configuration_folders())
        for folder in folders:
            changes.add(folder, _WRITTEN)
        seen = await asyncio.to_thread(_file_attributes, folders)
        while True:
            await changes.wait()
            now = await asyncio.to_thread(_file_attributes, folders)
            if now == seen:
                continue
            seen = await _wait_quiet(folders, now, quiet_seconds)
            try:
                await registration.renew_registration()
            except HostError as error:  # other programs wrote it, and may correct it
                log.warning("runtime handler not registered anew", error=str(error))


async def _wait_quiet(folders: Iterable[Path], seen: _Written, seconds: float) -> _Written:
    """Return the folders' state once it has not changed for this long."""
    while True:
        await asyncio.sleep(seconds)
        if (now := await asyncio.to_thread(_file_attributes, folders)) == seen:
            return seen
        seen = now


def _file_attributes(folders: Iterable[Path]) -> _Written:
    """Return attributes of the folders' files; each write of a file changes one of them."""
    found: _Written = {}
    for folder in folders:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    known = entry.stat(follow_symlinks=False)
                    found[entry.path] = (known.st_ino, known.st_size, known.st_ctime_ns)
    return found
