"""Safe opening of files in folders that pods or other tenants can write.

A process that is not frozen may replace any name in a volume, at any time, by a link to a file of the host. So root
never opens such a file by its path. Root holds a descriptor of the folder, and opens names beneath it by openat2(2),
which refuses every link, every path out of the folder, and every mount inside. Root inspects the file by an O_PATH
descriptor, which opens nothing, and opens through that descriptor only a regular file or a folder: a device may act as
soon as it is opened, a watchdog for one.
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
"""A lookup beneath a folder must be retried (EAGAIN) if another process renames a folder at that moment."""

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_trusted_folder(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of a folder whose own path only root can change; usable for lookups only.

    Raises:
        OSError: the folder does not exist, or is a link or no folder.
    """
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_path_beneath(folder: int, path: str) -> int:
    """Return an O_PATH descriptor of the file of this name beneath a folder, also of a link.

    Raises:
        OSError: the file does not exist; a link is on the way (ELOOP); the file is a mount or not beneath (EXDEV).
    """
    return _openat2(folder, path, _LOOK, _INSIDE | _RESOLVE_NO_XDEV)


def open_mounted_path(folder: int, path: str) -> int:
    """Like `open_path_beneath`, but a mount point, or a path below one, is permitted."""
    return _openat2(folder, path, _LOOK, _INSIDE)


def open_folder(folder: int, path: str) -> int:
    """Open a folder beneath a folder for listing; "." is the folder itself.

    Raises:
        OSError: as in `open_path_beneath`, or it is no folder (ENOTDIR).
    """
    return _openat2(folder, path, _FOLDER, _INSIDE | _RESOLVE_NO_XDEV)


def open_mounted_folder(folder: int, path: str) -> int:
    """Like `open_folder`, but a mount point, or a path below one, is permitted."""
    return _openat2(folder, path, _FOLDER, _INSIDE)


def open_regular_file(seen: int, flags: int = os.O_RDONLY) -> int:
    """Open the file of a descriptor from `open_path_beneath`.

    Raises:
        OSError: the file is no regular file (EINVAL), or may not be opened.
    """
    if not stat.S_ISREG(os.fstat(seen).st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    return os.open(descriptor_path(seen), flags | os.O_CLOEXEC)


def descriptor_path(seen: int) -> str:
    """Return a path to the file of this process's descriptor, regardless of changes to its name.

    Calls with that path must follow links to reach the file. Such calls do not follow the file itself, if it is a link.
    """
    return f"/proc/self/fd/{seen}"


def remove_recursively(folder: int, name: str) -> None:
    """Remove a name in a folder, recursively. Idempotent.

    Raises:
        OSError: the folder contains a mount, or another process keeps creating files there.
    """
    inner = _remove_or_open_folder(folder, name)
    if inner is None:
        return
    try:
        remove_all_in(inner)
    finally:
        os.close(inner)
    _remove_folder(folder, name)


def remove_all_in(folder: int) -> None:
    """Remove everything in a folder of `open_folder`.

    Raises:
        OSError: as in `remove_recursively`.
    """
    path = [_FolderBeingEmptied(folder, "", os.listdir(folder))]
    try:
        while True:
            last = path[-1]
            if last.names:
                name = last.names.pop()
                if (inner := _remove_or_open_folder(last.folder, name)) is not None:
                    path.append(_FolderBeingEmptied(inner, name, os.listdir(inner)))
            elif len(path) == 1:
                return
            else:
                os.close(path.pop().folder)
                _remove_folder(path[-1].folder, last.name)
    finally:
        for emptied in path[1:]:
            os.close(emptied.folder)


class _FolderBeingEmptied(NamedTuple):
    folder: int
    name: str
    names: list[str]
    """Names still in it."""


def _remove_or_open_folder(folder: int, name: str) -> int | None:
    """Remove a name that is no folder; a folder is opened and returned."""
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
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
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
