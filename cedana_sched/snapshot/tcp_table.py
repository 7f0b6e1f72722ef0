"""The kernel's TCP table of a process's network namespace (/proc/PID/net/tcp, proc_net_tcp.txt)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
ESTABLISHED, SYN_RECEIVED, CLOSE_WAIT = "01", "03", "08"  # linux tcp_states.h

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[Address, int]
"""An address with its port."""


class Connection(NamedTuple):
    """One end of a connection."""

    local: End
    remote: End
    state: str
    """The table's code, such as `ESTABLISHED`."""
    unacknowledged: int
    """Bytes that the other end has not received; a FIN counts as one."""
    inode: int
    """0 if no process owns it: it waits to be accepted, or was closed."""

    @property
    def has_owner(self) -> bool:
        return self.inode != 0

    @property
    def is_within_network(self) -> bool:
        """Whether both ends are in the same network."""
        return self.local[0] == self.remote[0] or self.remote[0].is_loopback


def connections(pid: int, proc: Path = PROC) -> Iterator[Connection]:
    """Yield all connections of a process's network, also listening sockets.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    network = proc / str(pid) / "net"
    yield from _parse_table(network / "tcp")
    if (newer := network / "tcp6").exists():  # missing on a kernel without IPv6
        yield from _parse_table(newer)


def network_tables_of(pids: Iterable[int], proc: Path = PROC, *, with_own: bool = True) -> Iterator[list[Connection]]:
    """Yield the table of each network of these processes once; those that have ended are skipped.

    Args:
        pids: of the processes.
        proc: where /proc is.
        with_own: whether to include this process's own network.
    """
    seen = set() if with_own else {(proc / "self/ns/net").stat().st_ino}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            network = (proc / str(pid) / "ns/net").stat().st_ino
            if network not in seen:
                seen.add(network)
                yield list(connections(pid, proc))


def remote_addresses(pids: Iterable[int], proc: Path = PROC) -> frozenset[str]:
    """Return the remote addresses of open connections in these processes' networks, except this process's own.

    Processes that end meanwhile are skipped.
    """
    found = (
        one for table in network_tables_of(pids, proc, with_own=False) for one in table if _is_open_to_outside(one)
    )
    return frozenset(str(one.remote[0]) for one in found)


def _is_open_to_outside(connection: Connection) -> bool:
    return connection.state == ESTABLISHED and connection.has_owner and not connection.is_within_network


def _parse_table(table: Path) -> Iterator[Connection]:
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        waiting_to_leave, _, _ = fields[4].partition(":")
        yield Connection(
            _parse_endpoint(fields[1]), _parse_endpoint(fields[2]), fields[3], int(waiting_to_leave, 16), int(fields[9])
        )


def _parse_endpoint(text: str) -> End:
    address, port = text.split(":")
    return _parse_address(address), int(port, 16)


def _parse_address(text: str) -> Address:
    """Parse 32-bit words, each in the machine's byte order."""
    words = (bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(words))
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found
