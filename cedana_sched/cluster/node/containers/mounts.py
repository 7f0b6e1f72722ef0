"""A container's mounts, from its own mountinfo: its overlay root, and its view of the control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_LINKS_FOLLOWED = 40  # as the kernel


def mount_points(mountinfo: str) -> Iterator[str]:
    """Every mount point, in the order in which they were mounted."""
    for line in _lines(mountinfo):
        yield _unescape(line.split(" ")[4])


def upper_directory(mountinfo: str, device: int) -> Path | None:
    """The upper directory of an overlay, as the host sees it; None where it is none, or is not mounted any more.

    The container's own processes may mount an overlay in its place, whose upper directory is named as they see it. So
    it is found by its device number (`st_dev`), which is the kernel's.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _lines(mountinfo):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if before.split(" ")[2] == wanted and kind == "overlay":
            found = re.search(r"(?:^|,)upperdir=((?:[^,\\]|\\.)+)", options)
            return Path(_unescape(found.group(1).replace("\\,", ","))) if found else None
    return None


def resolve_inside(root: Path, path: str) -> str:
    """Where `path` leads when `root` is the root directory: symbolic links are followed, and never out of it.

    What does not exist is taken as it is written.
    """
    done = PurePosixPath("/")
    waiting = [part for part in PurePosixPath(path).parts if part != "/"]
    links = 0
    while waiting:
        part = waiting.pop(0)
        if part == "..":
            done = done.parent
            continue
        here = root / done.relative_to("/") / part
        if not here.is_symlink() or links == _LINKS_FOLLOWED:
            done /= part
            continue
        links += 1
        target = PurePosixPath(here.readlink())
        if target.is_absolute():
            done = PurePosixPath("/")
        waiting = [part for part in target.parts if part != "/"] + waiting
    return str(done)


def _lines(mountinfo: str) -> list[str]:
    """The kernel ends a line with a newline alone: what Python takes for another end may stand in a name."""
    return [line for line in mountinfo.split("\n") if line]


def _unescape(path: str) -> str:
    """The kernel writes space, tab, newline and backslash as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path)
