"""Files of a pod, or of whoever else writes into a folder, opened so that none of them leads us elsewhere.

A process that is not frozen may exchange any name in a volume, at any instant, for a link to a file of the host. So
root never opens such a file by its path. It holds a descriptor of the folder, and opens names beneath it by openat2(2),
which refuses every link, whatever leads out of the folder, and whatever is mounted inside. It looks at the file by a
descriptor that opens nothing (O_PATH), and opens what that descriptor holds, and only a regular file or a folder: a
device may act as soon as it is opened, a watchdog for one.

Called by whoever reads or lays files of pods: `snapshot.archive`, `runtime.layer`, the agent's side of a node; and by
`store.tree`, for a folder that is a store.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from typing import NamedTuple

_SYS_OPENAT2 = 437  # system calls added since Linux 5.0 have the same number everywhere
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x01, 0x02, 0x04, 0x08
_INSIDE = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_LOOK = os.O_PATH | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_TRIES = 100
"""A lookup beneath a folder is to be done again (EAGAIN) where somebody renames another folder at that moment."""

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def hold(path: str | os.PathLike[str]) -> int:
    """A descriptor of a folder that belongs to root as far as its own name; it serves for nothing but lookups.

    Raises:
        OSError: it is not there, or is a link or no folder.
    """
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def look(folder: int, path: str) -> int:
    """A descriptor of whatever has this name beneath a folder, also of a link; nothing is opened.

    Raises:
        OSError: there is none; a link is on the way (ELOOP); it is mounted there or not beneath (EXDEV).
    """
    return _openat2(folder, path, _LOOK, _INSIDE | _RESOLVE_NO_XDEV)


def look_at_mount(folder: int, path: str) -> int:
    """The same of what may be mounted there, or below what is mounted."""
    return _openat2(folder, path, _LOOK, _INSIDE)


def open_folder(folder: int, path: str) -> int:
    """A folder beneath a folder, to be listed; "." is the folder itself.

    Raises:
        OSError: as of `look`, or it is no folder (ENOTDIR).
    """
    return _openat2(folder, path, _FOLDER, _INSIDE | _RESOLVE_NO_XDEV)


def open_mounted_folder(folder: int, path: str) -> int:
    """The same of what may be mounted there, or below what is mounted."""
    return _openat2(folder, path, _FOLDER, _INSIDE)


def open_regular(seen: int, flags: int = os.O_RDONLY) -> int:
    """Open the file that a descriptor of `look` holds.

    Raises:
        OSError: it is no regular file (EINVAL), or may not be opened.
    """
    if not stat.S_ISREG(os.fstat(seen).st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    return os.open(path_of(seen), flags | os.O_CLOEXEC)


def path_of(seen: int) -> str:
    """A path that leads to what a descriptor of this process holds, whatever has happened to its name.

    Calls that want a path must follow links to get there. They do not follow the one that the descriptor may hold.
    """
    return f"/proc/self/fd/{seen}"


def remove(folder: int, name: str) -> None:
    """Remove what has this name in a folder, with all that is in it; nothing happens if there is none.

    Raises:
        OSError: something is mounted in it, or somebody else goes on making files there.
    """
    inner = _removed_or_folder(folder, name)
    if inner is None:
        return
    try:
        remove_all_in(inner)
    finally:
        os.close(inner)
    _remove_folder(folder, name)


def remove_all_in(folder: int) -> None:
    """Remove all that is in a folder of `open_folder`.

    Raises:
        OSError: as of `remove`.
    """
    path = [_Emptied(folder, "", os.listdir(folder))]
    try:
        while True:
            last = path[-1]
            if last.names:
                name = last.names.pop()
                if (inner := _removed_or_folder(last.folder, name)) is not None:
                    path.append(_Emptied(inner, name, os.listdir(inner)))
            elif len(path) == 1:
                return
            else:
                os.close(path.pop().folder)
                _remove_folder(path[-1].folder, last.name)
    finally:
        for emptied in path[1:]:
            os.close(emptied.folder)


class _Emptied(NamedTuple):
    folder: int
    name: str
    names: list[str]
    """Of what is still in it."""


def _removed_or_folder(folder: int, name: str) -> int | None:
    """Remove what is no folder; a folder is opened."""
    try:
        return open_folder(folder, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return None


def _remove_folder(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    how = _How(flags | os.O_CLOEXEC, 0, resolve)
    name = os.fsencode(path)
    for _ in range(_TRIES):
        found: int = _libc.syscall(_SYS_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            why = "this kernel has no openat2, which Linux has since 5.6: without it no file of others is touched"
            raise OSError(number, why, path)
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)
