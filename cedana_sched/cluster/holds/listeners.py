"""Which sockets get preStop calls, and which of them are ours: the agent looks for those that are not.

Several processes of one user may listen at one address (SO_REUSEPORT): in a rollout two pods of ours do, and a pod on
the node's network that runs as root can. Ours say which sockets are theirs, in a folder that only root of the node, and
no pod without the node's files, can write.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Of the network namespace that we are in: the node's (`proc_net_tcp.txt` in Linux' documentation)."""
_LISTENING = "0A"
_WORD = 4
_UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound to them
"""Who listens there gets calls while no pod of ours does."""
_TAKING = tuple(ipaddress.ip_address(one).packed for one in ("127.0.0.1", "::ffff:127.0.0.1", *_UNSPECIFIED))


def listening_at(port: int, tables: tuple[Path, ...] = TABLES) -> set[int]:
    """Inodes of the sockets that calls on the loopback address may come to; blocks for as long as the table is long."""
    addresses = {f"{_as_the_kernel_writes(one)}:{port:04X}" for one in _TAKING}
    found = set()
    for table in tables:
        with contextlib.suppress(FileNotFoundError), table.open() as lines:  # a node without IPv6
            for row in map(str.split, lines):
                if row[1] in addresses and row[3] == _LISTENING:
                    found.add(int(row[9]))
    return found


def announced(folder: Path) -> set[int]:
    """Inodes that ours have said; blocks."""
    with contextlib.suppress(FileNotFoundError):
        return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}
    return set()


@contextlib.contextmanager
def announcing(folder: Path, inode: int, port: int) -> Iterator[None]:
    """Say inside the block that this socket is ours. What was killed has left is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for gone in announced(folder) - listening_at(port):
        (folder / str(gone)).unlink(missing_ok=True)
    ours = folder / str(inode)
    ours.touch()
    try:
        yield
    finally:
        ours.unlink(missing_ok=True)


def _as_the_kernel_writes(address: bytes) -> str:
    words = (address[begin : begin + _WORD] for begin in range(0, len(address), _WORD))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
