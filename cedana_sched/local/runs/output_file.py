"""Opens the output files of a job with no more rights than the job's user has.

The user of a job may own the folder of such a file, and put a link, a FIFO or a device into its place. Root would
follow the link, and wait for the FIFO. So a file that a submission names is opened, and its folders are created, with
the rights of the job's user; what exists keeps its owner. If that user is root, links of other users are refused. Root
itself opens only the files that the engine chose, in a folder that only root writes: those it gives to the user.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from cedana_sched.model.errors import UsageError

_APPENDING: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY  # of a terminal's device, we may be the leader
    | os.O_NONBLOCK  # a FIFO without a reader, or a line without a carrier, would block until there is one
)  # fmt: skip
_LOOKUP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o644
_MOST_LINKS: Final = 40
"""As the kernel's own limit: path_resolution(7)."""


class OutputUser(NamedTuple):
    """The user of a job, by whose rights its files are opened."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def open_output_file(field: str, path: Path, user: OutputUser, engines_folder: Path | None = None) -> int:
    """Open a file for appending, create it if necessary, and return its descriptor.

    For a process with one thread: its effective user changes meanwhile.

    Args:
        field: the field of the submission, for errors.
        path: absolute.
        user: of the job.
        engines_folder: the folder of the files that the engine chose for this job; only root writes it.

    Raises:
        UsageError: it cannot be opened by this user, or a FIFO has no reader.
    """
    try:
        descriptor = _open_with_rights_of(user, path, is_engines=path.parent == engines_folder)
    except OSError as error:
        raise _refusal(field, path, user, error) from error
    os.set_blocking(descriptor, True)  # the job's program expects it
    return descriptor


def _open_with_rights_of(user: OutputUser, path: Path, *, is_engines: bool) -> int:
    if os.geteuid() != 0:
        return _open_in_new_folders(path)
    if is_engines:  # also below links of others: the admin chose the state directory
        descriptor = os.open(path, _APPENDING | os.O_NOFOLLOW, _MODE)
        os.fchown(descriptor, user.uid, user.gid)
        return descriptor
    if user.uid == 0:
        return _open_without_links_of_others(path)
    with _rights_of(user):
        return _open_in_new_folders(path)


def _open_in_new_folders(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, _APPENDING, _MODE)


def _open_without_links_of_others(path: Path) -> int:
    """Open a file as root, one name at a time: between two steps no user can replace what was examined."""
    folder, names, links = os.open("/", _LOOKUP | os.O_DIRECTORY), deque(path.parts), 0
    try:
        while True:
            name = names.popleft()
            if (target := _read_roots_link(folder, name)) is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                names.extendleft(reversed(target.parts))
            elif not names:
                return os.open(name, _APPENDING | os.O_NOFOLLOW, _MODE, dir_fd=folder)
            else:
                entered = _enter_folder(folder, name)
                os.close(folder)
                folder = entered
    finally:
        os.close(folder)


def _read_roots_link(folder: int, name: str) -> PurePosixPath | None:
    """Return the target of a link of root; None if there is no link.

    Raises:
        OSError: it is a link of another user.
    """
    try:
        seen = os.open(name, _LOOKUP, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(seen)
        if not stat.S_ISLNK(found.st_mode):
            return None
        if found.st_uid != 0:
            raise OSError(errno.ELOOP, f"{name!r} is a link of user {found.st_uid}")
        return PurePosixPath(os.readlink("", dir_fd=seen))
    finally:
        os.close(seen)


def _enter_folder(folder: int, name: str) -> int:
    """Return a descriptor of a folder, which is created if there is none."""
    flags = _LOOKUP | os.O_DIRECTORY
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):  # created meanwhile
            os.mkdir(name, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


@contextmanager
def _rights_of(user: OutputUser) -> Iterator[None]:
    """Have the rights of a user inside the block; the process has one thread."""
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def _refusal(field: str, path: Path, user: OutputUser, error: OSError) -> UsageError:
    why = error.strerror or str(error)
    match error.errno:
        case errno.ENXIO:
            return UsageError(field, str(path), "is a FIFO that no process reads", remedy="start its reader first")
        case errno.EACCES | errno.EPERM | errno.ELOOP:
            remedy = f"name a file that user {user.uid} may write, or a folder of theirs"
        case errno.ENOSPC | errno.EDQUOT:
            remedy = "free space there, or name another place"
        case _:
            remedy = "name another file"
    return UsageError(field, str(path), f"cannot be opened by user {user.uid}, who runs the job: {why}", remedy=remedy)
