"""Adapts staged images to a new pod before CRIU reads them."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from cedana_sched.cluster.node.restoring.console_rebinding import rebind_console
from cedana_sched.cluster.node.restoring.internet_addresses import Address, read_address
from cedana_sched.cluster.node.restoring.own_addresses import move_own_addresses
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.outside_files import OutsideFiles, read_outside_files
from cedana_sched.runtime_handler.posix_lock_restore import PosixLock
from cedana_sched.runtime_handler.volume_file_comparison import is_within, read_record
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.current_terminals import reopen_by_name
from cedana_sched.snapshot.images import Entry, Images, folder_reader
from cedana_sched.snapshot.outside_stop_signals import drop_outside_stops
from cedana_sched.snapshot.posix_lock_removal import remove_posix_locks
from cedana_sched.snapshot.pty_output_reversal import undo_output_processing
from cedana_sched.snapshot.recorded_size_removal import remove_recorded_sizes
from cedana_sched.snapshot.terminal_file_links import separate_terminal_files
from cedana_sched.snapshot.timerfd_rearming import rearm_expired_timers

_LISTENING = 10  # linux tcp_states.h
_CLOSED = 7


class RestoreAdditions(NamedTuple):
    """What the handler needs in addition to the images."""

    criu: tuple[str, ...]
    """Lines for CRIU's configuration file."""
    locks: tuple[PosixLock, ...]
    """Locks that the restored processes must take themselves."""


def prepare_images(toolchain: Toolchain, images: Path, addresses: Collection[Address]) -> RestoreAdditions:
    """Correct in the images what CRIU would restore wrongly; return the rest for the handler.

    A new pod has a new address, one of `addresses`: sockets that were bound to the former one are bound to it, and TCP
    connections to other machines are restored as closed. If all TCP connections of a container are loopback
    connections, they are kept.

    Raises:
        RestoreError: it cannot be verified before the processes run that they get the same files.
        SnapshotError: an image cannot be decoded.
    """
    images.chmod(0o700)  # they hold the memory of processes
    decoded = Images(toolchain, folder_reader(images))
    _refuse_files_in_flight(decoded, images)
    remove_recorded_sizes(decoded, images, _outside_files(images))
    rearm_expired_timers(toolchain, images)
    undo_output_processing(toolchain, images)
    reopen_by_name(decoded, images)
    separate_terminal_files(decoded, images)
    rebind_console(decoded, images)
    move_own_addresses(decoded, images, addresses)
    drop_outside_stops(toolchain, images)
    connections = [entry["isk"] for entry in decoded.read_entries("files.img") if _is_open_tcp(entry.get("isk"))]
    within = all(_is_loopback(connection) for connection in connections)
    criu = ("tcp-established",) if connections and within else ("tcp-close",)
    return RestoreAdditions(criu, remove_posix_locks(toolchain, images))


def _refuse_files_in_flight(images: Images, folder: Path) -> None:
    """Refuse files of volumes in flight between processes at the dump: sent over a socket, and not yet received.

    CRIU reopens them as it opens all files, by their names and as root. But no process has such a file open before one
    receives it (SCM_RIGHTS), so nothing can verify that it is still the same file
    (`runtime_handler.volume_file_comparison`).
    """
    sent = {
        number
        for packet in images.read_entries("sk-queues.img")
        for message in packet.get("scm", ())
        if message["type"] == socket.SCM_RIGHTS
        for number in message.get("rights", ())
    }
    volumes = _volume_mount_points(folder) if sent else ()
    for entry in images.read_entries("files.img") if volumes else ():
        name = entry["reg"]["name"] if "reg" in entry else ""
        if entry["id"] in sent and is_within(name, volumes):
            raise RestoreError(
                f"{name} was on its way from one process to another when the snapshot was taken, so it is unknown "
                "whether it is still the same file",
                remedy="let the program receive files of volumes that it sends, or start the pod without the snapshot",
            )


def _outside_files(folder: Path) -> OutsideFiles | None:
    """Return the record of the files that the handler compares itself (`runtime_handler.outside_file_rewind`)."""
    try:
        return read_outside_files(str(folder))
    except ValueError as error:
        raise RestoreError(str(error), remedy="start the pod without the snapshot") from error


def _volume_mount_points(folder: Path) -> tuple[str, ...]:
    """Return the mount points of its volumes; the handler refuses a snapshot without this record."""
    try:
        held = read_record(str(folder))
    except ValueError as error:
        raise RestoreError(str(error), remedy="start the pod without the snapshot") from error
    return held.volumes if held is not None else ()


def _is_open_tcp(inet: Entry | None) -> bool:
    return bool(inet) and inet is not None and inet["proto"] == socket.IPPROTO_TCP and _is_open(inet["state"])


def _is_open(state: int) -> bool:
    return state not in (_LISTENING, _CLOSED)


def _is_loopback(inet: Entry) -> bool:
    """Return whether both ends are loopback addresses; addresses are lists of 32-bit words in network order."""
    try:
        return all(read_address(inet["family"], inet[end]).is_loopback for end in ("src_addr", "dst_addr"))
    except (ValueError, OverflowError):  # fewer words than an address has, which no dump writes
        return False
