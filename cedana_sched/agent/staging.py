"""Stages a snapshot on this node: checks that this machine can restore it, fetches and verifies its bytes.

Disk space is reserved before the first byte, so that no restore brings a node into disk pressure. The kubelet evicts
pods when less than some share of its filesystem, or of the images', is free, or of the inodes. A staged snapshot takes
space of one of the two. The remaining space must stay above that threshold, also when several snapshots are staged at
once. One namespace leaves room for others: its staged snapshots together take at most a share of the space.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cedana_sched.agent.compatibility_facts import compatibility_of_node
from cedana_sched.model.errors import IncompatibleError, NewerFormatError, RestoreError, RetryableError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest
from cedana_sched.model.path_segment_validation import is_segment, validate_segment
from cedana_sched.runtime_handler.atomic_write import final_name, is_temporary_name, write_atomically
from cedana_sched.store.reader import Progress
from cedana_sched.store.snapshot_store import SnapshotStore

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

    def reserved_bytes_of(self, total: int) -> int:
        return max(int(total * self.share), self.size)

    def reserved_inodes_of(self, total: int) -> int:
        return max(int(total * self.inode_share), self.inodes)


class NoRoomError(RestoreError, RetryableError):
    """This node has no room for the snapshot now: another node may have, or this one later."""


class Staging:
    """The staged snapshots below one directory; each belongs to one restore, by its uid.

    UID/        the images
    UID.facts   the runtime's restore facts, as JSON; written last: with it the snapshot is complete
    """

    def __init__(
        self,
        directory: Path,
        criu_version: str,
        reserve: Callable[[], Reserve] = Reserve,
        namespace_share: float = 1.0,
    ) -> None:
        """Stage below `directory`.

        Args:
            directory: created if missing.
            criu_version: of the CRIU that restores them.
            reserve: space to keep free on the filesystem; see `StagingSpace`.
            namespace_share: see `StagingSpace`.
        """
        self._directory = directory
        self._room = StagingSpace(directory, reserve, namespace_share=namespace_share)
        self._criu_version = criu_version

    def stage(
        self,
        store: SnapshotStore,
        restore_uid: str,
        snapshot: SnapshotRef,
        progress: Progress | None = None,
        manifest: str = "",
    ) -> None:
        """Fetch and verify all of a snapshot. A repeated call starts over: an incomplete one is never used.

        Args:
            store: has the snapshot.
            restore_uid: the Restore to stage for.
            snapshot: the snapshot to stage.
            progress: called with the fetched and the total bytes, from any thread.
            manifest: digest of the snapshot's manifest when it was committed; empty: unknown.

        Raises:
            IncompatibleError: this machine cannot restore it; names the reason.
            NewerFormatError: this machine needs an upgrade first, of cedana-sched or of its CRIU.
            NoRoomError: it would fill this machine's disk; nothing was written.
            StoreError: it cannot be read, or is damaged.
        """
        reader = store.open_snapshot(snapshot, manifest)
        here, taken = compatibility_of_node(self._criu_version), reader.manifest.metadata.compatibility
        if reasons := taken.reasons_against(here):
            raise IncompatibleError(
                f"{snapshot} cannot continue on this machine: {'; '.join(reasons)}",
                remedy="run it on a machine like the one it was taken on",
            )
        if taken.needs_newer_criu_than(here):
            raise NewerFormatError(
                f"{snapshot} was taken with CRIU {taken.criu}, which is newer than this machine's {here.criu}",
                remedy="upgrade cedana-sched here, which brings CRIU along: in a cluster this node's agent",
            )
        target = self.images_folder(restore_uid)
        self.remove(restore_uid)
        with self._room.allocate(restore_uid, reader.manifest, progress) as taking:
            target.mkdir(parents=True)
            reader.stage(target, taking)
        write_atomically(self._facts_path(restore_uid), msgspec.json.encode(reader.manifest.metadata.runtime))

    def images_folder(self, restore_uid: str) -> Path:
        """Return the folder of a Restore's staged images."""
        return self._directory / validate_segment("restore", restore_uid)

    def restore_facts(self, restore_uid: str) -> dict[str, Any] | None:
        """Return the restore facts of the runtime that took the snapshot; None if it is not staged completely."""
        try:
            content = self._facts_path(restore_uid).read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(content, type=dict[str, Any]) if content else None

    def remove(self, restore_uid: str) -> None:
        """Remove a staged snapshot; idempotent."""
        self._facts_path(restore_uid).unlink(missing_ok=True)
        shutil.rmtree(self.images_folder(restore_uid), ignore_errors=True)
        self._room.free_allocation(restore_uid)

    def remove_all_but(self, restore_uids: Collection[str]) -> None:
        """Remove what a killed agent has staged for restores that no longer exist."""
        if self._directory.exists():
            for path in self._directory.iterdir():
                uid = final_name(path.name).removesuffix(".facts")
                if uid not in restore_uids:
                    if is_segment(uid):
                        self.remove(uid)
                    if is_temporary_name(path.name) and not path.is_dir():
                        path.unlink(missing_ok=True)

    def _facts_path(self, restore_uid: str) -> Path:
        return self._directory / f"{validate_segment('restore', restore_uid)}.facts"


@dataclass
class _Allocation:
    """The space of one staged snapshot, until it is freed."""

    namespace: str
    size: int
    """Bytes, when complete."""
    pending: int
    """Bytes that are not written yet, and so do not show in the filesystem."""


class StagingSpace:
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
        self._taken: dict[str, _Allocation] = {}

    @contextlib.contextmanager
    def allocate(self, restore_uid: str, manifest: Manifest, progress: Progress | None = None) -> Iterator[Progress]:
        """Reserve space for a snapshot, kept beyond the block until `free_allocation`; after an error it is freed.

        Writers in the block must call the yielded function as their `progress`.

        Raises:
            NoRoomError: there is too little; nothing was written.
        """
        needed = needed_bytes(manifest)
        taken = _Allocation(manifest.ref.identity.namespace, needed, needed)
        with self._lock:
            self._refuse_if_full(manifest, needed)
            self._taken[restore_uid] = taken

        def passed_on(done: int, total: int) -> None:
            with self._lock:
                taken.pending = max(0, needed - done)
            if progress is not None:
                progress(done, total)

        try:
            yield passed_on
        except BaseException:
            self.free_allocation(restore_uid)
            raise
        with self._lock:
            taken.pending = 0

    def free_allocation(self, restore_uid: str) -> None:
        """Free the space of a Restore whose staged snapshot is removed; idempotent."""
        with self._lock:
            self._taken.pop(restore_uid, None)

    def _refuse_if_full(self, manifest: Manifest, needed: int) -> None:
        place = next(parent for parent in (self._folder, *self._folder.parents) if parent.exists())
        found = self._look(place)
        reserve = self._reserve()
        reserved = reserve.reserved_bytes_of(found.f_blocks * found.f_frsize)
        promised = sum(one.pending for one in self._taken.values())
        free = found.f_bavail * found.f_frsize - reserved - promised
        if needed > free:
            raise NoRoomError(
                f"{manifest.ref} needs {needed / _GIB:.1f} GiB below {self._folder}, and {max(0, free) / _GIB:.1f} GiB"
                f" are free beyond the {reserved / _GIB:.1f} GiB that stay free for the kubelet"
                + (f" and the {promised / _GIB:.1f} GiB that are being staged" if promised else ""),
                remedy="free space on this node, or have the pod scheduled to another one",
            )
        self._refuse_if_over_share(manifest, needed, free)
        inodes = found.f_favail - reserve.reserved_inodes_of(found.f_files)
        if found.f_files and len(manifest.streams) > inodes:
            raise NoRoomError(
                f"{manifest.ref} needs {len(manifest.streams)} files below {self._folder}, and {max(0, inodes)} inodes"
                " are free beyond those that stay free for the kubelet",
                remedy="remove files on this node, or have the pod scheduled to another one",
            )

    def _refuse_if_over_share(self, manifest: Manifest, needed: int, free: int) -> None:
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
