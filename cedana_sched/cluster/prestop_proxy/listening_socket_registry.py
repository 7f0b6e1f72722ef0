"""Registry of the sockets that get preStop calls, by which the agent detects foreign ones.

Several processes of one user may listen on one address (SO_REUSEPORT): during a rollout two `prestop-proxy` pods do,
and a pod on the host network that runs as root can. The `prestop-proxy` pods record their sockets in a folder that only
the node's root can write, and no pod without access to the node's files.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Socket tables of our network namespace, the node's (`proc_net_tcp.txt` in Linux' documentation)."""
_LISTENING = "0A"
_WORD = 4
_UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound to them
"""A socket bound to one of them gets calls while no `prestop-proxy` pod listens."""
_TAKING = tuple(ipaddress.ip_address(one).packed for one in ("127.0.0.1", "::ffff:127.0.0.1", *_UNSPECIFIED))


def listening_inodes_at(port: int, tables: tuple[Path, ...] = TABLES) -> set[int]:
    """Return inodes of the sockets that loopback calls can reach; blocks in proportion to the length of the table."""
    addresses = {f"{_format_kernel_address(one)}:{port:04X}" for one in _TAKING}
    found = set()
    for table in tables:
        with contextlib.suppress(FileNotFoundError), table.open() as lines:  # a node without IPv6
            for row in map(str.split, lines):
                if row[1] in addresses and row[3] == _LISTENING:
                    found.add(int(row[9]))
    return found


def registered_inodes(folder: Path) -> set[int]:
    """Return the inodes that `prestop-proxy` pods have recorded; blocks."""
    with contextlib.suppress(FileNotFoundError):
        return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}
    return set()


@contextlib.contextmanager
def registering_socket(folder: Path, inode: int, port: int) -> Iterator[None]:
    """Record this socket as ours inside the block. Records left by killed processes are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for gone in registered_inodes(folder) - listening_inodes_at(port):
        (folder / str(gone)).unlink(missing_ok=True)
    ours = folder / str(inode)
    ours.touch()
    try:
        yield
    finally:
        ours.unlink(missing_ok=True)


def _format_kernel_address(address: bytes) -> str:
    words = (address[begin : begin + _WORD] for begin in range(0, len(address), _WORD))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
