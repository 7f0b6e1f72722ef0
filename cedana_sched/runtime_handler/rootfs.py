"""Root files of a container that is being created: its image, and over it the snapshot's changes.

containerd mounts them before it calls the handler. If the restore fails and the container starts cold instead, it must
not find the snapshot's files: the overlay's upper directory, which was empty when containerd mounted it, is emptied
again, with the overlay unmounted meanwhile, because changes below a mounted overlay are undefined.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from cedana_sched.runtime_handler.kernel import mount, mount_lines, unmount
from cedana_sched.runtime_handler.layer import LayerError, unpack_layer
from cedana_sched.runtime_handler.safe_open import open_folder, open_trusted_folder, remove_all_in

_FLAGS = {
    "ro": 0x1,
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 1 << 21,
}


class Overlay(NamedTuple):
    """An overlay mount from mountinfo."""

    flags: int
    options: str

    def directory_option(self, name: str) -> str | None:
        """Return the value of `upperdir` or `workdir`."""
        found = re.search(rf"(?:^|,){name}=((?:[^,\\]|\\.)*)", self.options)
        return found.group(1) if found else None

    @property
    def is_relative(self) -> bool:
        """Whether its lower directories are relative to containerd's working directory, which is unknown."""
        lower = self.directory_option("lowerdir") or ""
        return not all(layer.startswith("/") for layer in lower.split(":"))


class Rootfs:
    """The root directory of one container that is being created."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_laid = False

    def unpack_over_image(self, layer: str) -> None:
        """Unpack a snapshot's files over the image's.

        Raises:
            OSError: the layer or the directory does not exist.
            LayerError: the layer cannot be unpacked.
        """
        self._is_laid = True
        unpack_layer(layer, self._path)

    def remove_unpacked(self) -> None:
        """Remove what was unpacked. Idempotent.

        Raises:
            OSError: the overlay is in use, or cannot be mounted again.
            LayerError: its directories are unknown, so nothing was done.
        """
        if not self._is_laid:
            return
        overlay = find_overlay(mount_lines(), os.path.realpath(self._path))
        upper, work = (
            (overlay.directory_option("upperdir"), overlay.directory_option("workdir")) if overlay else (None, None)
        )
        if overlay is None or upper is None or work is None or overlay.is_relative:
            raise LayerError("its root is no overlay whose directories are known")
        unmount(self._path)
        for folder in (upper, work):
            _empty_folder(folder)
        mount("overlay", self._path, "overlay", overlay.flags, overlay.options)
        self._is_laid = False


def find_overlay(mountinfo: Iterable[str], path: str) -> Overlay | None:
    """Return the topmost mount at `path`, if it is an overlay (proc_pid_mountinfo(5))."""
    found = None
    for line in mountinfo:
        own, _, rest = line.partition(" - ")
        fields, (fstype, _, options) = own.split(" "), rest.split(" ", 2)
        if _unescape_octal(fields[4]) == path:
            flags = sum(_FLAGS.get(option, 0) for option in fields[5].split(","))
            kept = [option for option in _unescape_octal(options).split(",") if option not in ("rw", "ro")]
            found = Overlay(flags, ",".join(kept)) if fstype == "overlay" else None
    return found


def _unescape_octal(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), text)


def _empty_folder(folder: str) -> None:
    held = open_trusted_folder(folder)
    try:
        opened = open_folder(held, ".")
    finally:
        os.close(held)
    try:
        remove_all_in(opened)
    finally:
        os.close(opened)
