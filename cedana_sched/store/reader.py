"""Reads of a snapshot: chunks in parallel, every one verified, zeros as holes.

A snapshot of a large process has millions of segments: they are kept as columns, and requests are created on demand.

A restore makes thousands of reads. If one failure failed the restore, an outage of seconds would discard everything
fetched so far. So each read is retried for a bounded time, and each retry is logged; the deadline of the restore bounds
how often the whole restore is attempted.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
import tenacity

from cedana_sched.model.errors import IntegrityError, NotFoundError, StoreUnavailableError
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest, StreamEntry
from cedana_sched.retrying import STORE
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, MissingObjectError
from cedana_sched.store.compression import decompress
from cedana_sched.store.sealing.seal import NO_SEAL, Seal
from cedana_sched.store.stream_writer import is_stream_name

READ_BYTES = 4 << 20
GAP_BYTES = 128 << 10
THREADS = 8
PATIENCE_SECONDS = 120.0
"""From the first attempt of one read to the start of its last."""
_REMEDY = "restore an older generation; `snapshots verify` shows which are whole"

pause = time.sleep

_log = structlog.get_logger(__name__)

R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Receives the bytes done and the total bytes, in any thread."""


class ReadRequest(NamedTuple):
    """One request: a range of a pack with some chunks."""

    pack: int
    offset: int
    length: int
    chunks: tuple[int, ...]


class ChunkReader:
    """Fetches and verifies chunks of one snapshot."""

    def __init__(self, backend: Backend, manifest: Manifest, seal: Seal = NO_SEAL) -> None:
        self._backend = backend
        self._manifest = manifest
        self._seal = seal.chunk_seal(manifest.ref.identity)

    def plan_reads(self, numbers: Iterable[int]) -> Iterator[ReadRequest]:
        """Yield the requests for these chunks: adjacent ones merged, in the order of their positions."""
        table = self._manifest.chunks
        packs, offsets = memoryview(table.packs).cast("I"), memoryview(table.offsets).cast("Q")
        stored = memoryview(table.stored).cast("I")
        pack = begin = end = 0
        together: list[int] = []
        for number in sorted(numbers, key=lambda one: packs[one] << 64 | offsets[one]):
            new_end = max(end, offsets[number] + stored[number])
            near = packs[number] == pack and offsets[number] <= end + GAP_BYTES and new_end - begin <= READ_BYTES
            if together and not near:
                yield ReadRequest(pack, begin, end - begin, tuple(together))
                together.clear()
            if not together:
                pack, begin = packs[number], offsets[number]
                new_end = begin + stored[number]
            end = new_end
            together.append(number)
        if together:
            yield ReadRequest(pack, begin, end - begin, tuple(together))

    def fetch_chunks(self, read: ReadRequest, take: Callable[[int, Buffer], None]) -> None:
        """Pass each verified chunk of one request to `take`.

        Damaged bytes are read once more before they count as damaged: the transfer may have corrupted them.

        Raises:
            IntegrityError: naming snapshot, stream, chunk and pack.
            StoreUnavailableError: the store was unavailable for too long.
        """
        data, is_fresh = self._read_range(read), False
        for number in read.chunks:
            try:
                chunk = self._verify_chunk(number, data, read.offset)
            except IntegrityError as error:
                if is_fresh:
                    raise
                _log.info("chunk_read_again", error=error.message)
                data, is_fresh = self._read_range(read), True
                chunk = self._verify_chunk(number, data, read.offset)
            take(number, chunk)

    def _read_range(self, read: ReadRequest) -> memoryview | None:
        """Read the range; None if the pack is missing."""
        manifest = self._manifest
        pack = layout.pack_key(manifest.ref.identity.namespace, manifest.summary.packs[read.pack])
        try:
            return memoryview(read_patiently(lambda: self._backend.get_range(pack, read.offset, read.length)))
        except MissingObjectError:
            return None

    def _verify_chunk(self, number: int, data: memoryview | None, offset: int) -> Buffer:
        if data is None:
            raise self._damage_error(number, "the pack is missing")
        row = self._manifest.chunks[number]
        begin = row.offset - offset
        try:
            writer = layout.pack_writer(self._manifest.summary.packs[row.pack])
            payload = self._seal.open(writer, row.digest, data[begin : begin + row.stored])
            chunk = decompress(row.codec, payload, row.size)
        except IntegrityError as error:
            raise self._damage_error(number, error.message) from error
        if self._seal.digest_chunk(chunk) != row.digest:
            raise self._damage_error(number, "its digest is another")
        return chunk

    def fetch_one(self, number: int) -> Buffer:
        chunks: list[Buffer] = []
        for read in self.plan_reads([number]):
            self.fetch_chunks(read, lambda _, chunk: chunks.append(chunk))
        return chunks[0]

    def _damage_error(self, number: int, why: str) -> IntegrityError:
        manifest = self._manifest
        row = manifest.chunks[number]
        users = (one.name for one in manifest.streams if any(part.chunk == number for part in one.segments))
        sentence = (
            f"snapshot {manifest.ref}: chunk {number} ({row.digest.hex()[:16]}…) of stream {next(users, '?')}"
            f" in pack {manifest.summary.packs[row.pack]} is damaged: {why}"
        )
        return IntegrityError(sentence, remedy=_REMEDY)


def read_patiently(read: Callable[[], R]) -> R:
    """Call `read`, with retries while the store is unavailable.

    Raises:
        StoreUnavailableError: the store was unavailable for too long. Any other error of `read` is raised at once.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(StoreUnavailableError),
        wait=STORE,
        stop=tenacity.stop_before_delay(PATIENCE_SECONDS),
        sleep=pause,
        before_sleep=_log_retry,
        reraise=True,
    )
    return attempts(read)


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _log.info("store_read_again", attempt=state.attempt_number, error=str(error))


class SnapshotReader:
    """One committed snapshot, its manifest verified; see `SnapshotStore.open_snapshot`."""

    def __init__(self, backend: Backend, manifest: Manifest, seal: Seal = NO_SEAL) -> None:
        self.manifest = manifest
        self._chunks = ChunkReader(backend, manifest, seal)
        self._last: tuple[int, Buffer] | None = None

    def read(self, name: str) -> bytes:
        """Read a whole, small stream into memory.

        Raises:
            NotFoundError: the snapshot has no such stream.
            IntegrityError: the stream is damaged.
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
        """Write every stream as a file of its name below an existing folder. Zeros become holes.

        Raises:
            IntegrityError: a chunk is damaged or missing; the folder is then incomplete.
            OSError: the folder cannot be written.
        """
        placement = _SegmentPlacement(self.manifest, directory)
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

        read_in_parallel(
            lambda read: self._chunks.fetch_chunks(read, take), self._chunks.plan_reads(placement.placed_chunks)
        )

    def _stream(self, name: str) -> StreamEntry:
        for stream in self.manifest.streams:
            if stream.name == name:
                return stream
        names = ", ".join(sorted(one.name for one in self.manifest.streams)[:8])
        remedy = f"it has {len(self.manifest.streams)}: {names}, …"
        raise NotFoundError("stream", name, f"is not in snapshot {self.manifest.ref}", remedy=remedy)


def read_in_parallel(action: Callable[[ReadRequest], None], reads: Iterable[ReadRequest]) -> None:
    """Call `action` for every request in several threads; the first failure stops the rest and is raised."""
    under_way: set[Future[None]] = set()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="store-read") as pool:
        try:
            for read in reads:
                if len(under_way) >= 2 * THREADS:
                    finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                under_way.add(pool.submit(action, read))
            for future in as_completed(under_way):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _SegmentPlacement:
    """Target of every piece of every chunk: row numbers of segments, ordered by chunk, and each segment's position.

    12 bytes per segment, beside the manifest's own columns.
    """

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self._streams = manifest.streams
        self._paths = [directory / _require_safe_name(stream.name) for stream in manifest.streams]
        self._positions = [
            array("Q", accumulate(memoryview(stream.segments.lengths).cast("Q"), initial=0))
            for stream in manifest.streams
        ]
        self._bases = array("Q", accumulate((len(stream.segments) for stream in manifest.streams), initial=0))
        ends = array("Q", bytes(8)) * (len(manifest.chunks) + 1)
        for stream in manifest.streams:
            for chunk in memoryview(stream.segments.chunks).cast("I"):
                if chunk != ZERO_CHUNK:
                    ends[chunk + 1] += 1
        ends = array("Q", accumulate(ends))
        self._rows = array("I" if self._bases[-1] < 1 << 32 else "Q", bytes(4 if self._bases[-1] < 1 << 32 else 8))
        self._rows *= ends[-1]
        row = 0
        for stream in manifest.streams:
            for chunk in memoryview(stream.segments.chunks).cast("I"):
                if chunk != ZERO_CHUNK:
                    self._rows[ends[chunk]] = row
                    ends[chunk] += 1
                row += 1
        self._ends = ends  # of every chunk, now that each has advanced from its own begin to the next one's

    @property
    def placed_chunks(self) -> Iterable[int]:
        return (number for number in range(len(self._ends) - 1) if self._rows_of_chunk(number))

    def _rows_of_chunk(self, number: int) -> range:
        return range(self._ends[number - 1] if number else 0, self._ends[number])

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
        target, descriptor = -1, -1
        try:
            for row in map(self._rows.__getitem__, self._rows_of_chunk(number)):
                if target < 0 or row >= self._bases[target + 1]:
                    if descriptor >= 0:
                        os.close(descriptor)
                    target = bisect_right(self._bases, row) - 1
                    descriptor = os.open(self._paths[target], os.O_WRONLY | os.O_CLOEXEC)
                    segments, base = self._streams[target].segments, self._bases[target]
                    offsets = memoryview(segments.offsets).cast("I")
                    lengths = memoryview(segments.lengths).cast("Q")
                at = row - base
                offset = offsets[at]
                _write_at(descriptor, view[offset : offset + lengths[at]], self._positions[target][at])
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _write_at(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        data = data[written:]
        position += written


def _require_safe_name(name: str) -> str:
    """Refuse a stream name that leads outside the folder: we do not write such manifests."""
    if not is_stream_name(name):
        raise IntegrityError(f"stream {name!r} cannot be the name of a stream", remedy="remove this snapshot")
    return name
