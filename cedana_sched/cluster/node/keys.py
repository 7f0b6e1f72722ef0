"""Waits for the keys that seal snapshots: their Secret may come after the agent, and nothing is saved without them.

The kubelet mounts a Secret that is not there as an empty folder, and fills it about a minute after the Secret was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog
from asyncinotify import Mask

from cedana_sched.model.errors import UsageError
from cedana_sched.service.watches import watches
from cedana_sched.store.sealing.key_file import KeyFile

log = structlog.get_logger(__name__)

_RENEWED = Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE
"""The kubelet lays files in a folder beside, and renames a link to it."""


async def wait_for_keys(file: Path, awaited: Callable[[str], None]) -> None:
    """Return once the file holds keys.

    Args:
        file: in a folder that is there.
        awaited: hears why not yet, for `/readyz`.
    """
    told = ""
    with watches().changes() as changes:
        changes.add(file.parent, _RENEWED)
        while (problem := await asyncio.to_thread(_problem, file)) is not None:
            if problem != told:
                log.warning("no keys to seal snapshots with: waiting for them", problem=problem)
                awaited(f"nothing is saved without keys that seal it: {problem}")
                told = problem
            await changes.wait()


def _problem(file: Path) -> str | None:
    try:
        KeyFile(file).newest()
    except UsageError as error:
        return f"{error.message}: see the Secret of storage.sealing; unless one is named, the coordinator makes it"
    return None
