"""The kernel's table of TCP connections, of the network that a process is in (/proc/PID/net/tcp, proc_net_tcp.txt)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
ESTABLISHED, SYN_RECEIVED, CLOSE_WAIT = "01", "03", "08"  # linux tcp_states.h
_NOBODY = "0"
"""Inode of sockets that no process has."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Connection(NamedTuple):
    """One end of a connection."""

    local: Address
    remote: Address
    state: str
    """As the table writes it, such as `ESTABLISHED`."""
    has_owner: bool
    """Whether a process has it; one that waits to be accepted has none."""

    @property
    def is_within(self) -> bool:
        """Whether both ends are in the same network."""
        return self.local == self.remote or self.remote.is_loopback


def connections(pid: int, proc: Path = PROC) -> Iterator[Connection]:
    """All of a process's network, also what only listens.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    network = proc / str(pid) / "net"
    yield from _rows(network / "tcp")
    if (newer := network / "tcp6").exists():  # not with a kernel without IPv6
        yield from _rows(newer)


def remote_addresses(pids: Iterable[int], proc: Path = PROC) -> frozenset[str]:
    """Where processes of the networks that these are in have open connections to, but for this process's own network.

    Those that end meanwhile are passed over.
    """
    found: set[str] = set()
    seen = {(proc / "self/ns/net").stat().st_ino}
    for pid in pids:
        try:
            network = (proc / str(pid) / "ns/net").stat().st_ino
            if network not in seen:
                seen.add(network)
                found.update(str(one.remote) for one in connections(pid, proc) if _leads_out(one))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(found)


def _leads_out(connection: Connection) -> bool:
    return connection.state == ESTABLISHED and connection.has_owner and not connection.is_within


def _rows(table: Path) -> Iterator[Connection]:
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (_address(field.split(":")[0]) for field in fields[1:3])
        yield Connection(local, remote, fields[3], fields[9] != _NOBODY)


def _address(text: str) -> Address:
    """From 32-bit words, each in the machine's order."""
    words = (bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(words))
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found
