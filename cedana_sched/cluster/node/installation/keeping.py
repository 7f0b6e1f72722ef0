"""Keeps our runtime handler beside those that others add later.

A drop-in of ours repeats the CRI plugin's table, and containerd 1.7 takes that table whole from the last file: what
others write after us would be lost behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import structlog
from asyncinotify import Inotify, Mask

from cedana_sched.cluster.node.installation.host import HostError

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0
"""Whoever changes containerd's configuration may write several files, and restarts it; we come after that."""
_WRITTEN = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class Registration(Protocol):
    """What is kept; see `Installation`."""

    async def folders(self) -> Iterable[Path]: ...
    async def renew(self) -> None: ...


async def keep_registered(registration: Registration, quiet_seconds: float = QUIET_SECONDS) -> None:
    """Renew the registration whenever containerd's configuration has changed, for ever."""
    with Inotify() as changes:
        for folder in await registration.folders():
            changes.add_watch(folder, _WRITTEN)
        while True:
            await changes.get()
            await _until_quiet(changes, quiet_seconds)
            try:
                await registration.renew()
            except HostError as error:  # it is as others have left it, and they may correct it
                log.warning("runtime handler not registered anew", problem=str(error))


async def _until_quiet(changes: Inotify, seconds: float) -> None:
    while True:
        try:
            async with asyncio.timeout(seconds):
                await changes.get()
        except TimeoutError:
            return
