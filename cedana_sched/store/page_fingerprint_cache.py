"""The node's cache of page fingerprints: a bounded folder shared by processes that may die at any time.

Capture processes and the agent use it without a global lock. A copy appears under its name whole, or not at all; its
process locks an unfinished copy, so that an unlocked one is an orphan, and is deleted. The digest detects damage. Least
recently used copies are evicted first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import structlog

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store.backend import Buffer

CACHE_BYTES = 2 << 30
"""16 bytes per page: the fingerprints of 512 GiB of memory."""
_IN_THE_MAKING = ".new-"
_COMMITTED_BY_SECONDS = 3600.0
"""Age by which the snapshot of a finished copy is committed, or never will be."""

_log = structlog.get_logger(__name__)


class CachedCopy(NamedTuple):
    """A copy: its snapshot, and its last use (epoch seconds)."""

    ref: SnapshotRef
    path: Path
    size: int
    used: float


class FingerprintCache:
    """Fingerprints of each identity's newest generation. Without a directory nothing is cached.

    Best-effort: failures do not fail a snapshot; without a copy the fingerprints are read from the store.
    """

    def __init__(self, directory: Path | None, limit_bytes: int = CACHE_BYTES) -> None:
        if limit_bytes < 0:
            raise UsageError("cache limit", limit_bytes, "is negative", remedy="give bytes; 0 keeps nothing")
        self._directory = directory
        self._limit = limit_bytes

    def copy_path_for(self, ref: SnapshotRef, writer: str) -> Path | None:
        if self._directory is None:
            return None
        one = ref.identity
        folder = self._directory / one.namespace / one.id / str(one.index) / one.container
        return folder / f"{ref.generation:010d}-{writer}"

    def open(self, ref: SnapshotRef, writer: str) -> BinaryIO | None:
        """Open a copy, not verified yet, and record its use; None if there is none."""
        path = self.copy_path_for(ref, writer)
        if path is None:
            return None
        try:
            copy = path.open("rb")
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return copy

    def new_copy(self, ref: SnapshotRef, writer: str, length: int = 0) -> NewCopy | None:
        """Start a copy, of `length` bytes if known; None if there is no room."""
        path = self.copy_path_for(ref, writer)
        if path is None or length > self._limit or not self._limit:
            return None
        try:
            return NewCopy(self, path, self._limit)
        except OSError as error:
            _log.info("page_index_not_kept_on_node", snapshot=str(ref), error=str(error))
            return None

    def delete_damaged_copy(self, ref: SnapshotRef, writer: str) -> None:
        """Delete a damaged copy."""
        path = self.copy_path_for(ref, writer)
        if path is not None:
            _log.warning("cached_page_index_damaged", snapshot=str(ref), path=str(path))
            _remove(path)

    def open_scratch_file(self) -> BinaryIO:
        """Return an unnamed file on the same disk, for data that is not cached.

        Raises:
            OSError: the disk refuses it.
        """
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cast("BinaryIO", tempfile.TemporaryFile(dir=self._directory, buffering=0))

    def keep_only(self, ref: SnapshotRef, writer: str) -> None:
        """Delete the copies of earlier generations."""
        path = self.copy_path_for(ref, writer)
        if path is not None:
            for other in _files(path.parent):
                if not other.name.startswith(_IN_THE_MAKING) and other.name < path.name:
                    _remove(other)

    def drop_snapshot(self, ref: SnapshotRef) -> None:
        """Delete the copies of a removed snapshot."""
        path = self.copy_path_for(ref, "")
        if path is not None and self._directory is not None:
            for one in _files(path.parent):
                if one.name.startswith(path.name):
                    _remove(one)
            _remove_empty(path.parent, self._directory)

    def forget_if_old(self, copy: CachedCopy) -> None:
        """Delete a copy whose snapshot is not in the store, unless its commit may still be in flight."""
        if time.time() - copy.used > _COMMITTED_BY_SECONDS:
            self.drop_snapshot(copy.ref)

    def has_copy(self, ref: SnapshotRef) -> bool:
        """Return whether there is a copy, of any writer; unverified."""
        path = self.copy_path_for(ref, "")
        return path is not None and any(one.name.startswith(path.name) for one in _files(path.parent))

    def cached_copies(self) -> list[CachedCopy]:
        """Return the copies, least recently used first."""
        found = [cached for path in self._cached_files() if (cached := self._parse_copy(path)) is not None]
        return sorted(found, key=lambda one: one.used)

    def evict_to_limit(self) -> None:
        """Delete dead processes' remains, and the least recently used copies until the rest fits.

        Foreign files stay, and are not counted: an admin may keep other files in the folder.
        """
        if self._directory is None:
            return
        copies = self.cached_copies()
        rest = sum(one.size for one in copies)
        for path in self._cached_files():
            if path.name.startswith(_IN_THE_MAKING) and self._identity_of_folder(path.parent) is not None:
                rest += _size_of_unfinished_copy(path)
        for one in copies:
            if rest <= self._limit:
                return
            _remove(one.path)
            _remove_empty(one.path.parent, self._directory)
            rest -= one.size

    def _cached_files(self) -> Iterator[Path]:
        if self._directory is not None:
            for folder, _, names in os.walk(self._directory):
                yield from (Path(folder, name) for name in names)

    def _parse_copy(self, path: Path) -> CachedCopy | None:
        """Return the copy that a file holds; None for a foreign or deleted file."""
        identity, generation = self._identity_of_folder(path.parent), path.name.partition("-")[0]
        if identity is None or not generation.isdecimal():
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        return CachedCopy(SnapshotRef(identity, int(generation)), path, status.st_size, status.st_mtime)

    def _identity_of_folder(self, folder: Path) -> Identity | None:
        """Return the identity whose copies a folder below ours holds; None for a foreign folder."""
        assert self._directory is not None  # noqa: S101 - only called for what lies below it
        parts = folder.relative_to(self._directory).parts
        if len(parts) != 4 or not parts[2].isdecimal():
            return None
        try:
            return Identity(parts[0], parts[1], int(parts[2]), parts[3])
        except UsageError:
            return None


class NewCopy:
    """An unfinished copy, locked until it is finished; abandoned if the disk fails, or the copy is too large."""

    def __init__(self, cache: FingerprintCache, path: Path, limit_bytes: int) -> None:
        self._cache = cache
        self._path = path
        self._limit = limit_bytes
        self._length = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_IN_THE_MAKING)
        self._partial = Path(name)
        self._file: BinaryIO | None = os.fdopen(descriptor, "w+b", buffering=0)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # contended only by `evict_to_limit`, which then has deleted the file

    @property
    def descriptor(self) -> int | None:
        """Descriptor to read what was written; None if the copy was abandoned."""
        return self._file.fileno() if self._file is not None else None

    def write(self, data: Buffer) -> None:
        """Append data; no effect once the copy is abandoned."""
        self._length += len(data)
        if self._file is None:
            return
        if self._length > self._limit:
            self.discard()
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            _log.info("page_index_not_kept_on_node", path=str(self._path), error=str(error))
            self.discard()

    def finish(self) -> None:
        """Publish the copy under its name, and make room for it."""
        if self._file is not None:
            try:
                self._partial.replace(self._path)
            except OSError as error:  # the folder or file was deleted: it is only a cache
                _log.info("page_index_not_kept_on_node", path=str(self._path), error=str(error))
                self.discard()
                return
            self._close()
            self._cache.evict_to_limit()

    def discard(self) -> None:
        """Abandon the copy, even a finished one."""
        _remove(self._partial if self._file is not None else self._path)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.is_dir()]
    except OSError:
        return []


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cached_file_not_removed", path=str(path), error=str(error))


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and its parents, up to the first that is not empty."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone
            return
        folder = folder.parent


def _size_of_unfinished_copy(path: Path) -> int:
    """Return the size of an unfinished copy; delete an orphan."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return os.fstat(file.fileno()).st_size
            _remove(path)
    except OSError:  # finished or abandoned meanwhile
        pass
    return 0
