"""Linux system calls that the standard library lacks, for the handler and the restore container.

A failed call raises OSError. `snapshot` has the same calls for other components; the handler's folder on a host has
only this package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterator

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x80, 0x100, 0x200
ALL_CHANGES = IN_CREATE | IN_MODIFY | IN_MOVED_TO
"""Events of a file that another process writes."""
_IN_ONLYDIR = 0x01000000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies; at once, if the parent is no longer `parent`."""
    _raise_on_failure(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def mount(source: str, target: str, fstype: str, flags: int, options: str) -> None:
    """Mount a filesystem."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), os.fsencode(options)
    )
    _raise_on_failure(result, f"mount of {fstype} on {target}")


def unmount(target: str) -> None:
    """Unmount a filesystem; it must not be busy."""
    _raise_on_failure(_libc.umount2(os.fsencode(target), 0), f"unmount of {target}")


def unmount_lazily(target: str) -> None:
    """Unmount a filesystem lazily: it may still be in use."""
    _raise_on_failure(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount of {target}")


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Deallocate a range of a file, which then reads as zeros; its size is unchanged (fallocate(2))."""
    result = _libc.fallocate(
        descriptor, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length)
    )
    _raise_on_failure(result, "fallocate(FALLOC_FL_PUNCH_HOLE)")


def mount_lines() -> list[str]:
    """Return the lines of this process's mountinfo.

    The kernel terminates a line only by a newline: Python's other line separators may occur in a name, as of a folder
    that a pod has mounted by subPath and renamed.
    """
    with open("/proc/self/mountinfo", "rb") as table:
        return table.read().decode(errors="surrogateescape").removesuffix("\n").split("\n")


def detach_mounts_below(folder: str) -> None:
    """Detach every mount below a folder, as a killed CRIU leaves them in its work directory."""
    for point in reversed([line.split(" ")[4] for line in mount_lines()]):
        if point.startswith(f"{folder}/"):
            unmount_lazily(point)


def inotify_watch(*folders: str, events: int = ALL_CHANGES) -> int:
    """Return an inotify descriptor for events of files in these folders, from now on."""
    descriptor = _raise_on_failure(_libc.inotify_init1(os.O_CLOEXEC), "inotify")
    try:
        for folder in folders:
            added = _libc.inotify_add_watch(descriptor, os.fsencode(folder), events | _IN_ONLYDIR)
            _raise_on_failure(added, f"inotify watch of {folder}")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_changed_names(descriptor: int) -> Iterator[str]:
    """Yield the names of changed files from an inotify descriptor; waits for the first one."""
    data = os.read(descriptor, 4096)
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("12xI", data, at)
        yield data[at + 16 : at + 16 + length].rstrip(b"\0").decode(errors="replace")
        at += 16 + length


def _raise_on_failure(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
