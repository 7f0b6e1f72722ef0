"""Keeps our runtime handler beside those that others add later.

A drop-in of ours repeats the CRI plugin's table, and containerd 1.7 takes that table whole from the last file: what
others write after us would be lost behind it.
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
from cedana_sched.service.watches import watches

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0
"""Whoever changes containerd's configuration may write several files, and restarts it; we come after that."""
_Written = dict[str, tuple[int, int, int]]
_WRITTEN = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class Registration(Protocol):
    """What is kept; see `Installation`."""

    async def folders(self) -> Iterable[Path]: ...
    async def renew(self) -> None: ...


async def keep_registered(registration: Registration, quiet_seconds: float = QUIET_SECONDS) -> None:
    """Renew the registration whenever containerd's configuration has changed, for ever."""
    with watches().changes() as changes:
        folders = tuple(await registration.folders())
        for folder in folders:
            changes.add(folder, _WRITTEN)
        seen = await asyncio.to_thread(_written, folders)
        while True:
            await changes.wait()
            now = await asyncio.to_thread(_written, folders)
            if now == seen:
                continue
            seen = await _wait_quiet(folders, now, quiet_seconds)
            try:
                await registration.renew()
            except HostError as error:  # it is as others have left it, and they may correct it
                log.warning("runtime handler not registered anew", problem=str(error))


async def _wait_quiet(folders: Iterable[Path], seen: _Written, seconds: float) -> _Written:
    """Return what is there once nothing has changed for so long."""
    while True:
        await asyncio.sleep(seconds)
        if (now := await asyncio.to_thread(_written, folders)) == seen:
            return seen
        seen = now


def _written(folders: Iterable[Path]) -> _Written:
    """What shows that a file of the folders was written: a change of it changes one of these."""
    found: _Written = {}
    for folder in folders:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it went meanwhile
                    known = entry.stat(follow_symlinks=False)
                    found[entry.path] = (known.st_ino, known.st_size, known.st_ctime_ns)
    return found
