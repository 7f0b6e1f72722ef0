r"""Unread output of a pseudo-terminal, which CRIU would process a second time.

CRIU 4.2.1 reads the output that waits at the master, and on restore writes it to the slave (criu/tty.c): where that
turns each "\n" into "\r\n", as terminals do by default (ONLCR, termios(3)), each line reaches the reader with an extra
"\r". A reader that waits for a line's exact end waits forever.

CRIU writes input that waits at the slave to the master: it is restored completely, and is echoed once more, if it is
echoed.
"""

from __future__ import annotations

import base64
import os
import shutil
import termios
from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, folder_reader

_DATA = "tty-data.img"
_INFO = "tty-info.img"
_AS_DUMPED = "as-dumped"
"""Folder of CRIU's originals: staged images may be prepared more than once."""
_MASTER = (5, 2)
"""Device numbers of /dev/ptmx."""
_PROCESSED = termios.OPOST | termios.ONLCR


def undo_output_processing(toolchain: Toolchain, images: Path) -> int:
    """Revert output processing in the staged images' unread output; return the number of terminals.

    Raises:
        SnapshotError: an image of terminals cannot be decoded.
    """
    if not (images / _DATA).exists():
        return 0
    dumped = images / _AS_DUMPED / _DATA
    if not dumped.exists():
        dumped.parent.mkdir(exist_ok=True)
        written = dumped.with_suffix(".new")
        shutil.copyfile(images / _DATA, written)
        written.replace(dumped)
    decoded = Images(toolchain, folder_reader(images))
    content: Entry = Images(toolchain, folder_reader(dumped.parent)).read_image(_DATA) or {"entries": []}
    masters = {entry["id"] for entry in decoded.read_entries(_INFO) if _has_output_processing(entry)}
    waiting = [entry for entry in content["entries"] if entry["tty_id"] in masters]
    for entry in waiting:
        entry["data"] = base64.b64encode(base64.b64decode(entry["data"]).replace(b"\r\n", b"\n")).decode()
    if waiting:
        decoded.replace(images / _DATA, content)
    return len(waiting)


def _has_output_processing(terminal: Entry) -> bool:
    device = (os.major(terminal["rdev"]), os.minor(terminal["rdev"]))
    return device == _MASTER and terminal.get("termios", {}).get("c_oflag", 0) & _PROCESSED == _PROCESSED
