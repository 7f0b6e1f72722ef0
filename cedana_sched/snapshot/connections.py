"""TCP connections of processes that are about to be killed, or that a killed CRIU left half dumped.

A TCP socket in *repair mode* (`TCP_REPAIR`, tcp(7), made for CRIU) says nothing to its peer, also when it is closed:
it just vanishes. CRIU relies on this when it kills what it dumped. Here the kill comes later, after the commit; an
ordinary close would tell the peers that it is over, and leave the addresses taken for a minute (TIME_WAIT), so that
the restore fails with `Address already in use`. And when CRIU is killed in the middle of a dump, sockets stay in
repair mode, and the workload's connections would hang.

Both are done from outside: a descriptor of the process is taken by pidfd_getfd(2), which a frozen process allows too.
Called by `freezer.kill` and by `aftermath`.
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


def silence_connections(pids: Iterable[int]) -> int:
    """Make the TCP connections of these processes vanish silently when they are closed; returns how many."""
    count = 0
    for connection in _tcp_sockets(pids):
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_ON)
            count += 1
    return count


def wake_connections(pids: Iterable[int]) -> int:
    """Let TCP connections speak again that a killed CRIU left in repair mode; returns how many it found."""
    count = 0
    for connection in _tcp_sockets(pids):
        if connection.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_OFF_NO_PROBE)
            count += 1
    return count


def _tcp_sockets(pids: Iterable[int]) -> Iterator[socket.socket]:
    """Each TCP socket once, however many processes share it, as an object of this process; closed after its turn."""
    seen: set[str] = set()
    for pid in pids:
        with ExitStack() as stack, suppress(ProcessLookupError, FileNotFoundError):  # ended meanwhile
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
                yield from _as_tcp_socket(pidfd, entry, seen)


def _as_tcp_socket(pidfd: int, entry: Path, seen: set[str]) -> Iterator[socket.socket]:
    with suppress(OSError):  # closed meanwhile by a process that runs
        name = str(entry.readlink())
        if not name.startswith("socket:") or name in seen:
            return
        seen.add(name)
        descriptor = pidfd_getfd(pidfd, int(entry.name))
        with socket.socket(fileno=descriptor) as found:
            if found.type == socket.SOCK_STREAM and found.proto == socket.IPPROTO_TCP:
                yield found
