"""Page fingerprints on the node: a bounded folder that several processes share, and leave at any time.

Capture processes and the agent use it without a lock. A copy appears under its name whole, or not at
all; a copy in the making is locked by its process, so that one that nobody locks was left behind, and goes. What is
damaged is found by its digest. The copies used longest ago make room for new ones.
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
"""16 bytes for each page: the fingerprints of 512 GiB of memory."""
_IN_THE_MAKING = ".new-"
_COMMITTED_BY_SECONDS = 3600.0
"""A copy is whole before its snapshot is committed: by this age it is, or never will be."""

_log = structlog.get_logger(__name__)


class Cached(NamedTuple):
    """A copy: whose it is, and when it was used last (seconds since the epoch)."""

    ref: SnapshotRef
    path: Path
    size: int
    used: float


class NodeCache:
    """The fingerprints of the newest generation of each identity. Without a directory it keeps nothing.

    Its own failures are no errors of a snapshot: without a copy the fingerprints come from the store.
    """

    def __init__(self, directory: Path | None, limit_bytes: int = CACHE_BYTES) -> None:
        if limit_bytes < 0:
            raise UsageError("cache limit", limit_bytes, "is negative", remedy="give bytes; 0 keeps nothing")
        self._directory = directory
        self._limit = limit_bytes

    def path(self, ref: SnapshotRef, writer: str) -> Path | None:
        if self._directory is None:
            return None
        one = ref.identity
        folder = self._directory / one.namespace / one.id / str(one.index) / one.container
        return folder / f"{ref.generation:010d}-{writer}"

    def open(self, ref: SnapshotRef, writer: str) -> BinaryIO | None:
        """The copy, to be verified by who reads it; it counts as used now. None where there is none."""
        path = self.path(ref, writer)
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
        """A copy to be written, of so many bytes if that is known; None where it has no room."""
        path = self.path(ref, writer)
        if path is None or length > self._limit or not self._limit:
            return None
        try:
            return NewCopy(self, path, self._limit)
        except OSError as error:
            _log.info("page_index_not_kept_on_node", snapshot=str(ref), why=str(error))
            return None

    def drop(self, ref: SnapshotRef, writer: str) -> None:
        """Remove a copy that is damaged."""
        path = self.path(ref, writer)
        if path is not None:
            _log.warning("cached_page_index_damaged", snapshot=str(ref), path=str(path))
            _remove(path)

    def scratch(self) -> BinaryIO:
        """A file without a name on the same disk, for what is not to be kept.

        Raises:
            OSError: the disk refuses it.
        """
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cast("BinaryIO", tempfile.TemporaryFile(dir=self._directory, buffering=0))

    def keep_only(self, ref: SnapshotRef, writer: str) -> None:
        """Forget what earlier generations left."""
        path = self.path(ref, writer)
        if path is not None:
            for other in _files(path.parent):
                if not other.name.startswith(_IN_THE_MAKING) and other.name < path.name:
                    _remove(other)

    def forget(self, ref: SnapshotRef) -> None:
        """The snapshot is removed: so is its copy."""
        path = self.path(ref, "")
        if path is not None and self._directory is not None:
            for one in _files(path.parent):
                if one.name.startswith(path.name):
                    _remove(one)
            _remove_empty(path.parent, self._directory)

    def forget_if_old(self, copy: Cached) -> None:
        """Remove a copy whose snapshot is not in the store, unless that snapshot is perhaps about to be committed."""
        if time.time() - copy.used > _COMMITTED_BY_SECONDS:
            self.forget(copy.ref)

    def is_kept(self, ref: SnapshotRef) -> bool:
        """Whether there is a copy, of whichever writer; unverified."""
        path = self.path(ref, "")
        return path is not None and any(one.name.startswith(path.name) for one in _files(path.parent))

    def copies(self) -> list[Cached]:
        """What is kept, the one used longest ago first."""
        found = [cached for path in self._walk() if (cached := self._cached(path)) is not None]
        return sorted(found, key=lambda one: one.used)

    def tidy(self) -> None:
        """Remove what dead processes left, and the copies used longest ago until the rest fits.

        What has no name of ours stays, and is not counted: whoever gives a folder may keep other things in it.
        """
        if self._directory is None:
            return
        copies = self.copies()
        rest = sum(one.size for one in copies)
        for path in self._walk():
            if path.name.startswith(_IN_THE_MAKING) and self._identity(path.parent) is not None:
                rest += _size_in_the_making(path)
        for one in copies:
            if rest <= self._limit:
                return
            _remove(one.path)
            _remove_empty(one.path.parent, self._directory)
            rest -= one.size

    def _walk(self) -> Iterator[Path]:
        if self._directory is not None:
            for folder, _, names in os.walk(self._directory):
                yield from (Path(folder, name) for name in names)

    def _cached(self, path: Path) -> Cached | None:
        """What a file is a copy of; None for what has another name, or has gone."""
        identity, generation = self._identity(path.parent), path.name.partition("-")[0]
        if identity is None or not generation.isdecimal():
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        return Cached(SnapshotRef(identity, int(generation)), path, status.st_size, status.st_mtime)

    def _identity(self, folder: Path) -> Identity | None:
        """Whose copies lie in a folder below ours; None where it is no folder of ours."""
        assert self._directory is not None  # noqa: S101 - only called for what lies below it
        parts = folder.relative_to(self._directory).parts
        if len(parts) != 4 or not parts[2].isdecimal():
            return None
        try:
            return Identity(parts[0], parts[1], int(parts[2]), parts[3])
        except UsageError:
            return None


class NewCopy:
    """A copy in the making, locked until it is finished; where the disk fails, or it is too large, there is none."""

    def __init__(self, cache: NodeCache, path: Path, limit_bytes: int) -> None:
        self._cache = cache
        self._path = path
        self._limit = limit_bytes
        self._length = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_IN_THE_MAKING)
        self._partial = Path(name)
        self._file: BinaryIO | None = os.fdopen(descriptor, "w+b", buffering=0)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for a `tidy` at most, which then has removed it

    @property
    def descriptor(self) -> int | None:
        """To read what was written; None once the copy was given up."""
        return self._file.fileno() if self._file is not None else None

    def write(self, data: Buffer) -> None:
        """Append; harmless once the copy was given up."""
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
            _log.info("page_index_not_kept_on_node", path=str(self._path), why=str(error))
            self.discard()

    def finish(self) -> None:
        """Let it be found under its name, and make room for it."""
        if self._file is not None:
            try:
                self._partial.replace(self._path)
            except OSError as error:  # somebody has removed the folder, or this file: it is only a copy
                _log.info("page_index_not_kept_on_node", path=str(self._path), why=str(error))
                self.discard()
                return
            self._close()
            self._cache.tidy()

    def discard(self) -> None:
        """Give it up, also when it is finished."""
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
        _log.warning("cached_file_not_removed", path=str(path), why=str(error))


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and those above it, up to the first that holds something."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone
            return
        folder = folder.parent


def _size_in_the_making(path: Path) -> int:
    """The size of a copy that a process writes now; one that nobody writes is removed."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return os.fstat(file.fileno()).st_size
            _remove(path)
    except OSError:  # finished or given up meanwhile
        pass
    return 0
