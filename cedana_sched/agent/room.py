"""Disk space for staged snapshots: reserved before the first byte, so that no restore brings a node into disk pressure.

The kubelet evicts pods when less than some share of its filesystem, or of the images', is free, or of the inodes. A
staged snapshot takes space of one of the two. The remaining space must stay above that threshold, also when several
snapshots are staged at once. One namespace leaves room for others: its staged snapshots together take at most a share
of the space.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cedana_sched.model.errors import RestoreError, RetryableError
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest
from cedana_sched.store.reader import Progress

_GIB = 1 << 30
_LAID_AGAIN = ("rootfs.tar", "volumes/")
"""Archives whose files are extracted into the new containers, in addition to the archives themselves."""


class Reserve(NamedTuple):
    """Free space to keep on a filesystem: a share or an absolute amount, whichever is more."""

    share: float = 0.0
    size: int = 0
    """Bytes."""
    inode_share: float = 0.0
    inodes: int = 0

    def of_bytes(self, total: int) -> int:
        return max(int(total * self.share), self.size)

    def of_inodes(self, total: int) -> int:
        return max(int(total * self.inode_share), self.inodes)


@dataclass
class _Taken:
    """The space of one staged snapshot, until it is freed."""

    namespace: str
    size: int
    """Bytes, when complete."""
    pending: int
    """Bytes that are not written yet, and so do not show in the filesystem."""


class NoRoomError(RestoreError, RetryableError):
    """This node has no room for the snapshot now: another node may have, or this one later."""


class Room:
    """The available space of one folder's filesystem. Thread-safe.

    Args:
        folder: of the staged snapshots; need not exist yet.
        reserve: returns the space to keep free; called each time.
        look: reads the filesystem's statistics.
        namespace_share: share of the space for staged snapshots that those of one namespace may take together; a single
            one may take all.
    """

    def __init__(
        self,
        folder: Path,
        reserve: Callable[[], Reserve] = Reserve,
        look: Callable[[Path], os.statvfs_result] = os.statvfs,
        namespace_share: float = 1.0,
    ) -> None:
        self._folder = folder
        self._reserve = reserve
        self._look = look
        self._lock = threading.Lock()
        self._namespace_share = namespace_share
        self._taken: dict[str, _Taken] = {}

    @contextlib.contextmanager
    def taken(self, restore_uid: str, manifest: Manifest, progress: Progress | None = None) -> Iterator[Progress]:
        """Reserve space for a snapshot, kept beyond the block until `freed`; after an error it is freed.

        Writers in the block must call the yielded function as their `progress`.

        Raises:
            NoRoomError: there is too little; nothing was written.
        """
        needed = needed_bytes(manifest)
        taken = _Taken(manifest.ref.identity.namespace, needed, needed)
        with self._lock:
            self._refuse(manifest, needed)
            self._taken[restore_uid] = taken

        def passed_on(done: int, total: int) -> None:
            with self._lock:
                taken.pending = max(0, needed - done)
            if progress is not None:
                progress(done, total)

        try:
            yield passed_on
        except BaseException:
            self.freed(restore_uid)
            raise
        with self._lock:
            taken.pending = 0

    def freed(self, restore_uid: str) -> None:
        """Free the space of a Restore whose staged snapshot is removed; idempotent."""
        with self._lock:
            self._taken.pop(restore_uid, None)

    def _refuse(self, manifest: Manifest, needed: int) -> None:
        place = next(parent for parent in (self._folder, *self._folder.parents) if parent.exists())
        found = self._look(place)
        reserve = self._reserve()
        reserved = reserve.of_bytes(found.f_blocks * found.f_frsize)
        promised = sum(one.pending for one in self._taken.values())
        free = found.f_bavail * found.f_frsize - reserved - promised
        if needed > free:
            raise NoRoomError(
                f"{manifest.ref} needs {needed / _GIB:.1f} GiB below {self._folder}, and {max(0, free) / _GIB:.1f} GiB"
                f" are free beyond the {reserved / _GIB:.1f} GiB that stay free for the kubelet"
                + (f" and the {promised / _GIB:.1f} GiB that are being staged" if promised else ""),
                remedy="free space on this node, or have the pod scheduled to another one",
            )
        self._refuse_share(manifest, needed, free)
        inodes = found.f_favail - reserve.of_inodes(found.f_files)
        if found.f_files and len(manifest.streams) > inodes:
            raise NoRoomError(
                f"{manifest.ref} needs {len(manifest.streams)} files below {self._folder}, and {max(0, inodes)} inodes"
                " are free beyond those that stay free for the kubelet",
                remedy="remove files on this node, or have the pod scheduled to another one",
            )

    def _refuse_share(self, manifest: Manifest, needed: int, free: int) -> None:
        """Refuse a namespace's second snapshot if it leaves no room for others."""
        namespace = manifest.ref.identity.namespace
        theirs = sum(one.size for one in self._taken.values() if one.namespace == namespace)
        share = int((free + sum(one.size for one in self._taken.values())) * self._namespace_share)
        if theirs and theirs + needed > share:
            raise NoRoomError(
                f"{manifest.ref} needs {needed / _GIB:.1f} GiB below {self._folder}, where snapshots of namespace"
                f" {namespace} that are not continued yet take {theirs / _GIB:.1f} GiB of the {share / _GIB:.1f} GiB"
                " that one namespace may take",
                remedy="wait until one of them is restored, or have the pod scheduled to another node",
            )


def needed_bytes(manifest: Manifest) -> int:
    """Return the bytes of a staged snapshot on disk: holes take none, content of archives takes its size twice."""
    needed = 0
    for stream in manifest.streams:
        chunks, lengths = array("I", stream.segments.chunks), array("Q", stream.segments.lengths)
        size = sum(length for chunk, length in zip(chunks, lengths, strict=True) if chunk != ZERO_CHUNK)
        is_laid_again = stream.name.endswith(_LAID_AGAIN[0]) or stream.name.startswith(_LAID_AGAIN[1])
        needed += size * 2 if is_laid_again else size
    return needed
