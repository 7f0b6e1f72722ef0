"""Connections that were made to a process and that it has not accepted yet.

They are in no process's hands, so CRIU cannot save them, and refuses to dump unless it is told to leave them out. One
that comes from another machine is lost anyway where the processes get a new address, as in a new pod: whoever made it
tries again, and a pod that is probed every second is hardly ever without one. One that a process of the same network
made must not be lost, because that process believes in it; the dump is tried again in a moment.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

_ESTABLISHED, _SYN_RECEIVED, _CLOSE_WAIT = "01", "03", "08"  # linux tcp_states.h
_WAITING = frozenset({_ESTABLISHED, _SYN_RECEIVED, _CLOSE_WAIT})
_NOBODY = "0"
"""Inode of sockets that no process has."""


def can_be_left_out(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether all that wait in the network of a process come from elsewhere, and that network is not the machine's."""
    process = proc / str(pid)
    try:
        if (process / "ns/net").stat().st_ino == (proc / "self/ns/net").stat().st_ino:
            return False
        ends = [end for name in ("tcp", "tcp6") for end in _waiting(process / "net" / name)]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(ends) and not any(_is_own(local, remote) for local, remote in ends)


def _waiting(table: Path) -> Iterator[tuple[str, str]]:
    """Local and remote address of each; in hexadecimal, as the kernel writes them."""
    if not table.exists():  # a kernel without IPv6
        return
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] in _WAITING and fields[9] == _NOBODY:
            yield fields[1].split(":")[0], fields[2].split(":")[0]


def _is_own(local: str, remote: str) -> bool:
    return local == remote or _address(remote).is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """From 32-bit words, each in the machine's order."""
    words = (bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(words))
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found
