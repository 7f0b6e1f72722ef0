"""Reading a snapshot back: chunks in parallel, every one verified, zeros as holes.

Called by the agent that stages a restore, by `verify`, and by whoever inspects a snapshot.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from cedana_sched.model.errors import IntegrityError, NotFoundError
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest, Segment, StreamEntry
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, MissingObjectError
from cedana_sched.store.compression import decompress
from cedana_sched.store.streams import is_stream_name

READ_BYTES = 4 << 20
GAP_BYTES = 128 << 10
THREADS = 8
_REMEDY = "restore an older generation; `snapshots verify` shows which are whole"

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all, from any thread."""


class Read(NamedTuple):
    """A part of a pack that holds some chunks, in one request."""

    pack: int
    offset: int
    length: int
    chunks: tuple[int, ...]


class ChunkReader:
    """Fetches chunks of one snapshot and verifies them."""

    def __init__(self, backend: Backend, manifest: Manifest) -> None:
        self._backend = backend
        self._manifest = manifest

    def plan(self, numbers: Iterable[int]) -> list[Read]:
        """The requests that fetch these chunks: neighbours together, in the order in which they lie."""
        table = self._manifest.chunks
        rows = sorted((row.pack, row.offset, row.stored, number) for number in numbers for row in (table[number],))
        reads: list[Read] = []
        for pack, offset, stored, number in rows:
            if reads:
                last = reads[-1]
                length = max(last.length, offset + stored - last.offset)
                if last.pack == pack and offset <= last.offset + last.length + GAP_BYTES and length <= READ_BYTES:
                    reads[-1] = Read(pack, last.offset, length, (*last.chunks, number))
                    continue
            reads.append(Read(pack, offset, stored, (number,)))
        return reads

    def fetch(self, read: Read, take: Callable[[int, Buffer], None]) -> None:
        """Hand the chunks of one request to `take`, each verified.

        Raises:
            IntegrityError: naming snapshot, stream, chunk and pack.
        """
        manifest = self._manifest
        pack = layout.pack_key(manifest.ref.identity.namespace, manifest.summary.packs[read.pack])
        try:
            data = memoryview(self._backend.get_range(pack, read.offset, read.length))
        except MissingObjectError as error:
            raise self._damaged(read.chunks[0], "the pack is missing") from error
        for number in read.chunks:
            row = manifest.chunks[number]
            begin = row.offset - read.offset
            try:
                chunk = decompress(row.codec, data[begin : begin + row.stored], row.size)
            except IntegrityError as error:
                raise self._damaged(number, error.message) from error
            if blake3(chunk).digest() != row.digest:
                raise self._damaged(number, "its digest is another")
            take(number, chunk)

    def fetch_one(self, number: int) -> Buffer:
        chunks: list[Buffer] = []
        for read in self.plan([number]):
            self.fetch(read, lambda _, chunk: chunks.append(chunk))
        return chunks[0]

    def _damaged(self, number: int, why: str) -> IntegrityError:
        manifest = self._manifest
        row = manifest.chunks[number]
        users = (one.name for one in manifest.streams if any(part.chunk == number for part in one.segments))
        sentence = (
            f"snapshot {manifest.ref}: chunk {number} ({row.digest.hex()[:16]}…) of stream {next(users, '?')}"
            f" in pack {manifest.summary.packs[row.pack]} is damaged: {why}"
        )
        return IntegrityError(sentence, remedy=_REMEDY)


class SnapshotReader:
    """One committed snapshot. Made by `SnapshotStore.open_snapshot`, which has verified the manifest."""

    def __init__(self, backend: Backend, manifest: Manifest) -> None:
        self.manifest = manifest
        self._chunks = ChunkReader(backend, manifest)
        self._last: tuple[int, Buffer] | None = None

    def read(self, name: str) -> bytes:
        """A whole stream in memory; for small ones.

        Raises:
            NotFoundError: the snapshot has no such stream.
            IntegrityError: it is damaged.
        """
        data = bytearray()
        for segment in self._stream(name).segments:
            if segment.chunk == ZERO_CHUNK:
                data += bytes(segment.length)
                continue
            if self._last is None or self._last[0] != segment.chunk:
                self._last = (segment.chunk, self._chunks.fetch_one(segment.chunk))
            data += memoryview(self._last[1])[segment.offset : segment.offset + segment.length]
        return bytes(data)

    def stage(self, directory: Path, progress: Progress | None = None) -> None:
        """Write every stream as a file of its name below an existing folder. Files are sparse where memory was zero.

        Raises:
            IntegrityError: a chunk is damaged or missing; the folder then holds a useless part.
            OSError: the folder cannot be written.
        """
        placement = _Placement(self.manifest, directory)
        placement.create_files()
        total = sum(memoryview(self.manifest.chunks.sizes).cast("I"))
        lock = threading.Lock()
        done = 0

        def take(number: int, chunk: Buffer) -> None:
            nonlocal done
            placement.write(number, chunk)
            with lock:
                done += len(chunk)
                if progress is not None:
                    progress(done, total)

        in_parallel(lambda read: self._chunks.fetch(read, take), self._chunks.plan(placement.chunks))

    def _stream(self, name: str) -> StreamEntry:
        for stream in self.manifest.streams:
            if stream.name == name:
                return stream
        names = ", ".join(sorted(one.name for one in self.manifest.streams)[:8])
        remedy = f"it has {len(self.manifest.streams)}: {names}, …"
        raise NotFoundError("stream", name, f"is not in snapshot {self.manifest.ref}", remedy=remedy)


def in_parallel(action: Callable[[Read], None], reads: list[Read]) -> None:
    """Call `action` for every request from several threads; the first failure stops the rest and is raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="store-read") as pool:
        futures = [pool.submit(action, read) for read in reads]
        finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for future in finished:
        future.result()


class _Placement:
    """Where every piece of every chunk goes: columns sorted by chunk, so that a chunk finds its rows at once."""

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self._streams = manifest.streams
        self._paths = [directory / _checked(stream.name) for stream in manifest.streams]
        self._first: dict[int, tuple[int, int]] = {}
        rows = sorted(
            (segment.chunk, number, at, segment.offset, segment.length)
            for number, stream in enumerate(manifest.streams)
            for at, segment in _located(stream)
        )
        columns = zip(*rows, strict=True) if rows else iter(((), (), (), (), ()))
        chunks, *others = (array("Q", column) for column in columns)
        self._targets, self._positions, self._offsets, self._lengths = others
        begin = 0
        for row in range(1, len(chunks) + 1):
            if row == len(chunks) or chunks[row] != chunks[begin]:
                self._first[chunks[begin]] = (begin, row)
                begin = row

    @property
    def chunks(self) -> Iterable[int]:
        return self._first.keys()

    def create_files(self) -> None:
        for stream, path in zip(self._streams, self._paths, strict=True):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, stream.size_bytes)
            finally:
                os.close(descriptor)

    def write(self, number: int, chunk: Buffer) -> None:
        view = memoryview(chunk)
        begin, end = self._first[number]
        target, descriptor = -1, -1
        try:
            for row in range(begin, end):
                if self._targets[row] != target:
                    if descriptor >= 0:
                        os.close(descriptor)
                    target = self._targets[row]
                    descriptor = os.open(self._paths[target], os.O_WRONLY | os.O_CLOEXEC)
                offset = self._offsets[row]
                _write_at(descriptor, view[offset : offset + self._lengths[row]], self._positions[row])
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _located(stream: StreamEntry) -> Iterable[tuple[int, Segment]]:
    at = 0
    for segment in stream.segments:
        if segment.chunk != ZERO_CHUNK:
            yield at, segment
        at += segment.length


def _write_at(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        data = data[written:]
        position += written


def _checked(name: str) -> str:
    """A manifest that names a file outside the folder was not written by us."""
    if not is_stream_name(name):
        raise IntegrityError(f"stream {name!r} cannot be the name of a stream", remedy="remove this snapshot")
    return name
