"""TCP repair mode for processes about to be killed, or left half dumped by a killed CRIU.

A TCP socket in *repair mode* (`TCP_REPAIR`, tcp(7), made for CRIU) sends nothing to its peer, even when it is closed:
it vanishes. CRIU relies on this when it kills the processes that it dumped. Here the kill comes later, after the
commit; an ordinary close would end the connection for its peers, and keep the addresses in use for a minute
(TIME_WAIT), so that the restore fails with `Address already in use`. And when CRIU is killed in the middle of a dump,
sockets stay in repair mode, and the workload's connections would hang.

Both are done from outside: pidfd_getfd(2) duplicates a descriptor of the process, which works for a frozen process,
too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from cedana_sched.snapshot.syscalls import pidfd_getfd

_TCP_REPAIR = 19  # linux/tcp.h
_REPAIR_ON = 1
_REPAIR_OFF_NO_PROBE = -1  # off, without the window probe that a restore sends


def enter_repair_mode(pids: Iterable[int]) -> int:
    """Make the TCP connections of these processes vanish silently on close; return how many."""
    count = 0
    for connection in _tcp_sockets(pids):
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_ON)
            count += 1
    return count


def leave_repair_mode(pids: Iterable[int]) -> int:
    """Reset TCP connections that a killed CRIU left in repair mode; return how many."""
    count = 0
    for connection in _tcp_sockets(pids):
        if connection.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_OFF_NO_PROBE)
            count += 1
    return count


def _tcp_sockets(pids: Iterable[int]) -> Iterator[socket.socket]:
    """Yield each TCP socket once, even if processes share it, duplicated into this process; closed after its turn."""
    seen: set[str] = set()
    for pid in pids:
        with ExitStack() as stack, suppress(ProcessLookupError, FileNotFoundError):  # ended meanwhile
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
                yield from _open_tcp_socket(pidfd, entry, seen)


def _open_tcp_socket(pidfd: int, entry: Path, seen: set[str]) -> Iterator[socket.socket]:
    with suppress(OSError):  # closed meanwhile by a running process
        name = str(entry.readlink())
        if not name.startswith("socket:") or name in seen:
            return
        seen.add(name)
        descriptor = pidfd_getfd(pidfd, int(entry.name))
        with socket.socket(fileno=descriptor) as found:
            if found.type == socket.SOCK_STREAM and found.proto == socket.IPPROTO_TCP:
                yield found
