"""The names by which CRIU opens, creates and removes files at a restore, and which users can redirect them.

CRIU works as root, and follows links. It opens files of processes by their names, creates deleted files again in the
folders where they were, and removes a socket's name before it binds the socket again. What a process holds can be
verified afterwards (`runtime_handler.volume_file_comparison`), but what was created or removed elsewhere
cannot be undone. So names are examined before.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cedana_sched.snapshot.images import Entry, Images

_MOST_LINKS = 40  # as in the kernel
_SEARCH, _WRITE = 1, 2


class NameTrust(NamedTuple):
    """Who can redirect a name."""

    link: str | None = None
    """A link on the way, or at the end, that another user than root may have made."""
    is_replaceable: bool = False
    """Whether another user than root can put another file in its place."""


def names_of_files(images: Images) -> Iterator[str]:
    """Yield the paths of all files that the processes hold, deleted ones as well.

    Raises:
        SnapshotError: the image of files cannot be decoded.
    """
    for entry in images.read_entries("files.img"):
        if "reg" in entry:
            yield "/" + entry["reg"]["name"].lstrip("/")


def names_of_sockets(images: Images) -> Iterator[str]:
    """Yield the paths of all unix sockets that have one, as they were bound.

    Raises:
        SnapshotError: the image of files cannot be decoded.
    """
    for entry in images.read_entries("files.img"):
        name = _socket_name(entry["usk"]) if "usk" in entry else ""
        if name:
            yield str(Path(entry["usk"].get("name_dir", "/"), name))


def names_of_sent_files(images: Images) -> Iterator[str]:
    """Yield the paths of files on their way from one process to another (SCM_RIGHTS), which no process holds yet.

    Raises:
        SnapshotError: an image cannot be decoded.
    """
    sent = {
        number
        for packet in images.read_entries("sk-queues.img")
        for message in packet.get("scm", ())
        if message["type"] == socket.SCM_RIGHTS
        for number in message.get("rights", ())
    }
    for entry in images.read_entries("files.img") if sent else ():
        if entry["id"] in sent and "reg" in entry:
            yield "/" + entry["reg"]["name"].lstrip("/")


def other_users_of(images: Images) -> frozenset[int]:
    """Return the users, other than root, that the processes have in any of their user ids.

    Raises:
        SnapshotError: an image cannot be decoded.
    """
    users: set[int] = set()
    for process in images.read_entries("pstree.img"):
        for thread in process["threads"] or [process["pid"]]:
            for core in images.read_entries(f"core-{thread}.img"):
                creds = core["thread_core"]["creds"]
                users.update(creds[name] for name in ("uid", "euid", "suid", "fsuid"))
    return frozenset(users - {0})


def _socket_name(unix: Entry) -> str:
    """Return the path of a socket; empty if it has none, or an abstract name (pycriu writes @ for the first zero)."""
    name = unix.get("name", "")
    return "" if name.startswith(("@", "\0")) else name.split("\0")[0]


def examine_name(path: str) -> NameTrust:
    """Return who can redirect an absolute path, as it is now. Links of root's in folders of root's are followed.

    Raises:
        OSError: a folder cannot be inspected.
    """
    parts = deque(path.split("/"))
    folder, is_roots, links = Path("/"), True, 0
    while parts:
        name = parts.popleft()
        if name in ("", ".", ".."):
            folder = folder.parent if name == ".." else folder
            continue
        here = folder / name
        try:
            seen = here.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return NameTrust(is_replaceable=not (is_roots and _is_roots_entry(folder.lstat(), None)))
        is_roots = is_roots and _is_roots_entry(folder.lstat(), seen)
        if not stat.S_ISLNK(seen.st_mode):
            folder = here
            continue
        links += 1
        if not is_roots or links > _MOST_LINKS:
            return NameTrust(str(here), is_replaceable=True)
        target = here.readlink()
        parts.extendleft(reversed(str(target).split("/")))
        folder = Path("/") if target.is_absolute() else folder
    return NameTrust(is_replaceable=not is_roots)


def can_create(path: str, user: int) -> bool:
    """Return whether a user may create or replace this name, by no other links than the user's own and root's.

    So the user gains nothing if root does it. Permissions by groups do not count.

    Raises:
        OSError: a folder cannot be inspected.
    """
    above, _, last = path.rpartition("/")
    parts = deque(above.split("/"))
    folder, links = Path("/"), 0
    while parts:
        name = parts.popleft()
        if name in ("", ".", ".."):
            folder = folder.parent if name == ".." else folder
            continue
        here = folder / name
        try:
            seen = here.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not _permits(folder.lstat(), user, _SEARCH):
            return False
        if not stat.S_ISLNK(seen.st_mode):
            folder = here
            continue
        links += 1
        if seen.st_uid not in (0, user) or links > _MOST_LINKS:
            return False
        target = here.readlink()
        parts.extendleft(reversed(str(target).split("/")))
        folder = Path("/") if target.is_absolute() else folder
    return last not in ("", ".", "..") and _can_create_in(folder, last, user)


def _can_create_in(folder: Path, name: str, user: int) -> bool:
    into = folder.lstat()
    if not stat.S_ISDIR(into.st_mode) or not _permits(into, user, _SEARCH | _WRITE):
        return False
    try:
        there = (folder / name).lstat()
    except FileNotFoundError:
        return True
    if stat.S_ISLNK(there.st_mode):
        return False
    return not into.st_mode & stat.S_ISVTX or user in (into.st_uid, there.st_uid)


def _permits(folder: os.stat_result, user: int, bits: int) -> bool:
    """Return whether a folder's owner, or everyone, has these permissions."""
    wanted = bits << 6 if folder.st_uid == user else bits << 3 | bits
    return folder.st_mode & wanted == wanted


def _is_roots_entry(folder: os.stat_result, entry: os.stat_result | None) -> bool:
    """Return whether root alone can make, remove and replace this entry of a folder; None for a missing one."""
    if folder.st_uid != 0:
        return False
    if not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    return bool(folder.st_mode & stat.S_ISVTX) and entry is not None and entry.st_uid == 0
