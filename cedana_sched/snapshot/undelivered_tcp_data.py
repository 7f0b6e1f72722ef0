"""Data that a process sent before it closed its end of a connection, and that its peer has not received yet.

The kernel continues to deliver such data without an owning process (tcp(7), tcp_max_orphans). CRIU saves what processes
own, so such data would be lost with the kernel that has them, and a peer among the saved processes would wait for them
forever. Most arrive at once, as the peer's kernel receives for it while it is frozen; if its buffer is full, the peer
has to read first. The same holds for a connection that one end has established and the other has not: CRIU sees only
those that wait to be accepted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cedana_sched.snapshot.dump import DumpInterruptedError
from cedana_sched.snapshot.tcp_table import PROC, SYN_RECEIVED, Connection, network_tables_of

_PATIENCE_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.01


def await_delivery(pids: Collection[int], proc: Path = PROC) -> None:
    """Wait until nothing is in flight to these frozen processes from ends without an owning process.

    Raises:
        DumpInterruptedError: the data does not arrive during the freeze.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while missing := _find_undelivered(pids, proc):
        if time.monotonic() > until:
            raise DumpInterruptedError(missing, remedy="that would be lost; the snapshot is tried again")
        time.sleep(_PAUSE_SECONDS)  # the kernel does not notify of the arrival


def _find_undelivered(pids: Collection[int], proc: Path) -> str | None:
    """Return what is missing for any one of them."""
    for table in network_tables_of(pids, proc):
        orphans = [one for one in table if not one.has_owner and (one.unacknowledged or one.state == SYN_RECEIVED)]
        if orphans:
            ours = set(_socket_inodes(pids, proc))
            ends = {(one.local, one.remote) for one in table if one.inode in ours}
            for orphan in orphans:
                if (orphan.remote, orphan.local) in ends:
                    return _describe_orphan(orphan)
    return None


def _describe_orphan(orphan: Connection) -> str:
    if orphan.state == SYN_RECEIVED:
        return f"a connection of its own to port {orphan.local[1]} is only half made"
    return f"it has not read the last {orphan.unacknowledged} bytes of a connection whose other end is closed"


def _socket_inodes(pids: Collection[int], proc: Path) -> Iterator[int]:
    """Yield the inodes of sockets."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # ended
            for descriptor in (proc / str(pid) / "fd").iterdir():
                kind, _, number = str(descriptor.readlink()).partition(":")
                if kind == "socket":
                    yield int(number.strip("[]"))
