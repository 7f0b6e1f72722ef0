"""Waits for containerd before an action that must not happen without it.

A container that exits while containerd restarts ends with status 255 and the reason `Unknown` (`cleaning leaked shim
process` in containerd's log): containerd misses the shim's exit event, and the container counts as one that never ran.
So the decision that ends a restore container is written only while containerd listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import time
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger(__name__)

LONGEST_SECONDS = 60.0
"""Upper bound of the wait: a node whose containerd is away for longer starts no container anyway."""
PAUSE_SECONDS = 0.25
"""Retry interval: no event shows that a process listens on an existing socket."""

SETTLED_SECONDS = 3.0
"""Minimum uptime. containerd listens before it follows its containers: one that exits in between runs for ever
according to containerd (`Start recovering state`, `Start event monitor` in its log, 0.4 s apart on a busy node)."""


async def wait_for_containerd(place: Path, longest_seconds: float = LONGEST_SECONDS) -> None:
    """Return once the listener on this socket has run long enough to have recovered its containers.

    Returns after `longest_seconds` in any case, with a line in the log.
    """
    try:
        async with asyncio.timeout(longest_seconds):
            while True:
                if await _is_listener_settled(place):
                    return
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        log.warning("containerd does not answer: proceeding without it", socket=str(place), seconds=longest_seconds)


async def _is_listener_settled(place: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(place))
    except OSError:
        return False
    runs_for = _peer_uptime_seconds(writer.get_extra_info("socket"))
    writer.close()
    with contextlib.suppress(OSError):  # it closed at that moment
        await writer.wait_closed()
    return runs_for >= SETTLED_SECONDS


def _peer_uptime_seconds(connection: socket.socket) -> float:
    """Return the uptime of the process at the other end; infinite if it is not visible from here."""
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        return time.time() - psutil.Process(pid).create_time()
    except (psutil.Error, ValueError):
        return math.inf
