"""POSIX locks of a snapshot: removed from CRIU's images, so that the restored processes acquire them themselves.

See `cedana_sched.runtime_handler.posix_lock_restore`, which acquires them, for why CRIU must not restore them. This
module changes the staged images before `restore`. The removed locks stay in a file beside the images, for further
attempts of the restore.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cedana_sched.runtime_handler.posix_lock_restore import PosixLock
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, folder_reader

FILE_NAME = "posix-locks.json"

_IMAGE = "filelocks.img"
_POSIX = 1  # linux/fs.h, FL_POSIX; OFD locks, flocks and leases have bits of their own, and stay CRIU's


def remove_posix_locks(toolchain: Toolchain, images: Path) -> tuple[PosixLock, ...]:
    """Remove the POSIX locks from a staged snapshot, so that CRIU does not restore them, and return them.

    Raises:
        SnapshotError: the image of locks cannot be decoded.
    """
    kept = images / FILE_NAME
    locks = tuple(msgspec.json.decode(kept.read_bytes(), type=list[PosixLock])) if kept.exists() else ()
    decoded = Images(toolchain, folder_reader(images))
    content = decoded.read_image(_IMAGE)
    if content is None:
        return locks
    found = [entry for entry in content["entries"] if entry["flag"] & _POSIX]
    if found:
        locks = tuple(map(_decode_lock, found))
        written = kept.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(locks))
        written.replace(kept)
        content["entries"] = [entry for entry in content["entries"] if entry not in found]
        decoded.replace(images / _IMAGE, content)
    return locks


def _decode_lock(entry: Entry) -> PosixLock:
    return PosixLock(entry["pid"], entry["fd"], entry["type"], entry["start"], entry["len"])
