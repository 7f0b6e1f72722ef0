"""The own address of connected UDP sockets, which is that of the pod that was saved.

Before CRIU connects a socket, it binds the socket to the address that it had, which a new pod does not have: the
restore would fail. Bound to no address, the socket gets the new pod's when it is connected, and keeps its port and the
other end. Nothing is lost: UDP has no state, and a connected socket receives from its other end alone.
"""

from __future__ import annotations

import socket
from pathlib import Path

from cedana_sched.cluster.node.restoring.internet_addresses import read_address
from cedana_sched.snapshot.images import Entry, Images

_IMAGE = "files.img"
_CONNECTED = 1  # linux tcp_states.h


def forget_own_addresses(images: Images, folder: Path) -> None:
    """Remove the own address of each connected UDP socket in staged images, except loopback addresses.

    Raises:
        SnapshotError: the image cannot be decoded.
    """
    content = images.read_image(_IMAGE) or {"entries": []}
    bound = [entry["isk"] for entry in content["entries"] if "isk" in entry and _has_own_address(entry["isk"])]
    for inet in bound:
        inet["src_addr"] = [0] * len(inet["src_addr"])
    if bound:
        images.replace(folder / _IMAGE, content)


def _has_own_address(inet: Entry) -> bool:
    if inet["proto"] != socket.IPPROTO_UDP or inet["state"] != _CONNECTED:
        return False
    try:
        address = read_address(inet["family"], inet["src_addr"])
    except (ValueError, OverflowError):  # fewer words than an address has, which no dump writes
        return False
    return not (address.is_loopback or address.is_unspecified)
