"""Adapts staged images to a new pod before CRIU reads them."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import NamedTuple

from cedana_sched.cluster.node.restoring.sent_files import refuse_sent_files
from cedana_sched.runtime.locks import PosixLock
from cedana_sched.snapshot.images import Entry, Images, folder_reader
from cedana_sched.snapshot.outside_signals import drop_outside_stops
from cedana_sched.snapshot.posix_locks import take_out_posix_locks
from cedana_sched.snapshot.terminals import undo_output_processing
from cedana_sched.snapshot.timers import rearm_expired_timers
from cedana_sched.snapshot.toolchain import Toolchain

_LISTENING = 10  # linux tcp_states.h
_CLOSED = 7


class ReadyImages(NamedTuple):
    """What the handler needs in addition to the images."""

    criu: tuple[str, ...]
    """Lines for CRIU's configuration file."""
    locks: tuple[PosixLock, ...]
    """Locks that the restored processes must take themselves."""


def ready_images(toolchain: Toolchain, images: Path) -> ReadyImages:
    """Correct in the images what CRIU would restore wrongly; return the rest for the handler.

    A new pod has a new address, so connections to other machines are restored as closed. If all connections of a
    container are loopback connections, they are kept.

    Raises:
        RestoreError: it cannot be verified before the processes run that they get the same files.
        SnapshotError: an image cannot be decoded.
    """
    images.chmod(0o700)  # they hold the memory of processes
    refuse_sent_files(toolchain, images)
    rearm_expired_timers(toolchain, images)
    undo_output_processing(toolchain, images)
    drop_outside_stops(toolchain, images)
    entries = Images(toolchain, folder_reader(images)).entries("files.img")
    connections = [entry["isk"] for entry in entries if _is_connection(entry.get("isk"))]
    within = all(_is_loopback(connection) for connection in connections)
    criu = ("tcp-established",) if connections and within else ("tcp-close",)
    return ReadyImages(criu, take_out_posix_locks(toolchain, images))


def _is_connection(inet: Entry | None) -> bool:
    return bool(inet) and inet is not None and inet["proto"] == socket.IPPROTO_TCP and _is_open(inet["state"])


def _is_open(state: int) -> bool:
    return state not in (_LISTENING, _CLOSED)


def _is_loopback(inet: Entry) -> bool:
    """Return whether both ends are loopback addresses; addresses are lists of 32-bit words in network order."""
    try:
        return all(_address(inet["family"], inet[end]).is_loopback for end in ("src_addr", "dst_addr"))
    except (ValueError, OverflowError):  # fewer words than an address has, which no dump writes
        return False


def _address(family: int, words: list[int]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    data = b"".join(word.to_bytes(4, "little") for word in words)
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(data[:4])
    address = ipaddress.IPv6Address(data[:16])
    return address.ipv4_mapped or address
