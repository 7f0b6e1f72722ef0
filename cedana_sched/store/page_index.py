"""The object of page fingerprints that lies beside a manifest, and its copy on the node.

It is an aid, not a part of the snapshot: where it is lost or damaged the next generation is written in full, and no
error is raised. A node that takes snapshots of the same workload again and again need not fetch it each time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
from array import array
from pathlib import Path

from blake3 import blake3

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import PageIndex
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, MissingObjectError, Sink
from cedana_sched.store.pages import FINGERPRINT_BYTES

_FETCH_BYTES = 8 << 20


class PageIndexWriter:
    """Takes fingerprints of all streams as they come; nothing is kept in memory."""

    def __init__(self, backend: Backend, key: str, copy: Path | None) -> None:
        self.key = key
        self._backend = backend
        self._copy = _CopyOnNode(copy) if copy else None
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._hasher = blake3()
        self._blocks = array("I")
        self._length = 0

    def append(self, stream: int, fingerprints: bytes) -> None:
        with self._lock:
            if self._sink is None:
                self._sink = self._backend.open_sink(self.key)
            self._sink.write(fingerprints)
            if self._copy:
                self._copy.write(fingerprints)
            self._hasher.update(fingerprints)
            self._length += len(fingerprints)
            pages = len(fingerprints) // FINGERPRINT_BYTES
            if self._blocks and self._blocks[-2] == stream:
                self._blocks[-1] += pages
            else:
                self._blocks.extend((stream, pages))

    def finish(self) -> PageIndex | None:
        """Make it durable; None if no page was stored."""
        with self._lock:
            if self._sink is None:
                return None
            sink, self._sink = self._sink, None
            sink.finish()
            if self._copy:
                self._copy.finish()
            return PageIndex(self._length, self._hasher.digest(), self._blocks.tobytes())

    def abort(self) -> None:
        with self._lock:
            if self._sink is not None:
                self._sink.abort()
            if self._copy:
                self._copy.discard()


class NodeCache:
    """A folder on the node with the fingerprints of the newest generation of each identity; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def path(self, ref: SnapshotRef, writer: str) -> Path | None:
        if self._directory is None:
            return None
        return self._folder(self._directory, ref.identity) / f"{ref.generation:010d}-{writer}"

    def keep_only(self, ref: SnapshotRef, writer: str) -> None:
        """Forget what earlier generations left."""
        path = self.path(ref, writer)
        if path is not None:
            with contextlib.suppress(OSError):
                for other in path.parent.iterdir():
                    if other.name < path.name:
                        other.unlink(missing_ok=True)

    def load(self, backend: Backend, ref: SnapshotRef, writer: str, index: PageIndex) -> bytes | mmap.mmap | None:
        """The fingerprints, verified; from the node if it has them. None where they are lost or damaged."""
        path = self.path(ref, writer)
        if path is not None:
            with contextlib.suppress(OSError), path.open("rb") as copy:
                if (flat := _map_verified(copy.fileno(), index)) is not None:
                    return flat
        with tempfile.TemporaryFile() as file:
            try:
                for offset in range(0, index.length, _FETCH_BYTES):
                    file.write(backend.get_range(layout.pages_key(ref, writer), offset, _FETCH_BYTES))
            except MissingObjectError:
                return None
            file.flush()
            return _map_verified(file.fileno(), index)

    @staticmethod
    def _folder(directory: Path, identity: Identity) -> Path:
        return directory / identity.namespace / identity.id / str(identity.index) / identity.container


class _CopyOnNode:
    """The copy is optional: where the node's disk fails, there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tempfile._TemporaryFileWrapper[bytes] | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError:
                self.discard()

    def finish(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
                Path(self._file.name).replace(self._path)
            self._file = None

    def discard(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                Path(self._file.name).unlink()
            self._file = None


def _map_verified(descriptor: int, index: PageIndex) -> mmap.mmap | None:
    if os.fstat(descriptor).st_size != index.length or not index.length:
        return None
    flat = mmap.mmap(descriptor, index.length, prot=mmap.PROT_READ)
    if blake3(flat).digest() != index.digest:
        flat.close()
        return None
    return flat
