"""Opens the file of a terminal's output, as root, and so that no user of the machine leads root to another file.

The user of a job may own the folder of the file, and put a link into its place. So where a folder on the way belongs
to another user than root, or others may write it, the file is opened with that user's rights alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_APPENDING: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def open_terminal_output(path: Path, uid: int, gid: int) -> int:
    """Open or create the file for appending, and return its descriptor; a new one belongs to that user.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    if uid == 0 or os.geteuid() != 0:
        return os.open(path, _APPENDING, 0o644)
    if not all(map(_is_roots_alone, path.parents)):
        with _rights_of(uid, gid):
            return os.open(path, _APPENDING, 0o644)
    descriptor = os.open(path, _APPENDING, 0o644)
    if os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, uid, gid)
    return descriptor


def _is_roots_alone(folder: Path) -> bool:
    """Return whether no other user can replace the folder's entries that belong to root."""
    found = folder.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return found.st_uid == 0 and stat.S_ISDIR(found.st_mode) and not others_write


@contextmanager
def _rights_of(uid: int, gid: int) -> Iterator[None]:
    """Have the rights of a user inside the block; the process has one thread."""
    groups, root = os.getgroups(), os.getegid()
    os.setgroups([gid])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(root)
        os.setgroups(groups)
