"""Periodic timers that had expired at the freeze, rearmed, because CRIU does not.

An expired, unread timerfd shows as "0 until the next expiry" in /proc/PID/fdinfo when its process is frozen or stopped.
CRIU 4.2.1 records that, and 0 means *disarmed* when it sets the timer on restore (criu/timerfd.c): the program reads
one expiry and then waits forever. Setting the next expiry to one nanosecond makes the timer continue with its own
interval.
"""

from __future__ import annotations

from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, folder_reader

_IMAGE = "files.img"


def rearm_expired_timers(toolchain: Toolchain, images: Path) -> int:
    """Rearm the periodic timerfds in staged `images` that would be disarmed after the restore; return how many.

    Raises:
        SnapshotError: the image of open files cannot be decoded.
    """
    decoded = Images(toolchain, folder_reader(images))
    if (content := decoded.read_image(_IMAGE)) is None:
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
