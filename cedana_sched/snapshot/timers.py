"""Periodic timers that had expired when their process was frozen: armed again, as CRIU forgets to.

A timerfd that has expired and was not read yet shows as "0 until the next expiry" in /proc/PID/fdinfo when its process
is frozen or stopped. CRIU 4.2.1 writes that down, and 0 means *disarmed* when it sets the timer on restore
(criu/timerfd.c): the program reads one expiry and then waits for ever. Setting the next expiry to one nanosecond makes
the timer go on with its own interval.

Called before `restore`, on the staged images.
"""

from __future__ import annotations

from pathlib import Path

from cedana_sched.snapshot.images import Entry, Images, folder_reader
from cedana_sched.snapshot.toolchain import Toolchain

_IMAGE = "files.img"


def rearm_expired_timers(toolchain: Toolchain, images: Path) -> int:
    """Arm the periodic timerfds in `images` that would come back disarmed; returns how many there were.

    Raises:
        SnapshotError: the image of open files cannot be decoded.
    """
    decoded = Images(toolchain, folder_reader(images))
    if (content := decoded.content(_IMAGE)) is None:
        return 0
    expired = [entry["tfd"] for entry in content["entries"] if _is_expired(entry.get("tfd"))]
    for timer in expired:
        timer["vnsec"] = 1
    if expired:
        decoded.replace(images / _IMAGE, content)
    return len(expired)


def _is_expired(timer: Entry | None) -> bool:
    if not timer or not timer["ticks"]:
        return False
    return not (timer["vsec"] or timer["vnsec"]) and bool(timer["isec"] or timer["insec"])
