"""Waits for containerd where something must not happen without it.

A container that ends while containerd restarts ends with status 255 and the reason `Unknown` (`cleaning leaked shim
process` in its log): its shim has nobody to tell, and is taken for one that never ran. So a restore container, which
ends because we say so, is told only while containerd listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

LONGEST_SECONDS = 60.0
"""A node whose containerd is away for longer starts no container either, whatever has been said."""
PAUSE_SECONDS = 0.25
"""Before it is tried again: nothing tells when somebody listens at a socket that is there already."""


async def until_listening(socket: Path, longest_seconds: float = LONGEST_SECONDS) -> None:
    """Return when somebody takes a connection there, as containerd does once it has found its containers again.

    Returns after `longest_seconds` in any case, with a line in the log.
    """
    try:
        async with asyncio.timeout(longest_seconds):
            while True:
                if await _is_listening(socket):
                    return
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        log.warning("containerd does not answer: going on without it", socket=str(socket), seconds=longest_seconds)


async def _is_listening(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):  # it went that moment
        await writer.wait_closed()
    return True
