"""Files of volumes in flight between processes at the dump: sent over a socket, and not yet received (SCM_RIGHTS).

CRIU reopens them as it opens all files, by their names and as root. But no process has such a file open before one
receives it, so nothing can verify that it is still the same file (`runtime.volume_files`).
"""

from __future__ import annotations

import socket
from pathlib import Path

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime.volume_files import is_within, read
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.toolchain import Toolchain


def refuse_sent_files(toolchain: Toolchain, folder: Path) -> None:
    """Check the staged images of a container.

    Raises:
        RestoreError: a file of a volume is in flight between two processes.
        SnapshotError: an image cannot be decoded.
    """
    images = Images(toolchain, folder_reader(folder))
    sent = {
        number
        for packet in images.entries("sk-queues.img")
        for message in packet.get("scm", ())
        if message["type"] == socket.SCM_RIGHTS
        for number in message.get("rights", ())
    }
    volumes = _volumes(folder) if sent else ()
    for entry in images.entries("files.img") if volumes else ():
        name = entry["reg"]["name"] if "reg" in entry else ""
        if entry["id"] in sent and is_within(name, volumes):
            raise RestoreError(
                f"{name} was on its way from one process to another when the snapshot was taken, so it is unknown "
                "whether it is still the same file",
                remedy="let the program receive files of volumes that it sends, or start the pod without the snapshot",
            )


def _volumes(folder: Path) -> tuple[str, ...]:
    """Return the mount points of its volumes; the handler refuses a snapshot without this record."""
    try:
        held = read(str(folder))
    except ValueError as error:
        raise RestoreError(str(error), remedy="start the pod without the snapshot") from error
    return held.volumes if held is not None else ()
