"""A container's mounts, from its own mountinfo: its overlay root, and its view of the control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_LINKS_FOLLOWED = 40  # the kernel's limit


def mount_points(mountinfo: str) -> Iterator[str]:
    """Yield every mount point, in mount order."""
    for line in _lines(mountinfo):
        yield _unescape(line.split(" ")[4])


def upper_directory(mountinfo: str, device: int) -> Path | None:
    """Return the upper directory of an overlay, as the host sees it; None if it is no overlay, or no longer mounted.

    The container's own processes may mount an overlay in its place, whose upper directory is named as they see it. So
    the overlay is identified by its device number (`st_dev`), which the kernel assigns.
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
    """Resolve `path` below the root directory `root`: symbolic links are followed, and never leave the root.

    Components that do not exist are kept as they are.
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
    """Split at newlines alone, as the kernel does: other line separators of Python may occur in a name."""
    return [line for line in mountinfo.split("\n") if line]


def _unescape(path: str) -> str:
    """Decode the kernel's octal escapes (three digits) of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path)
