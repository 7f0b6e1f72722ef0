"""The threaded pipeline from full chunk buffers to packs: digest, deduplicate, compress, seal, append.

Packs concatenate chunks, so that a store has few large objects instead of many small ones. One pack is filled at a
time; while it is made durable the next is started.

Work in flight is bounded, and at most two packs are pending, so `submit` blocks while compression or the store is
slower than the producer. The first failure is kept, and every later call raises it: no thread's error is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from cedana_sched.model.errors import CedanaSchedError, StoreError
from cedana_sched.model.manifest import Chunk, Chunks
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, Sink
from cedana_sched.store.compression import Compressor
from cedana_sched.store.sealing.seal import ChunkSeal

CHUNK_BYTES = 1 << 20
PACK_BYTES = 64 << 20
MAX_THREADS = 8
_FINISHING = 2


class ChunkLocation(NamedTuple):
    """A chunk's position in a named pack, of this snapshot or of an earlier one."""

    chunk: Chunk
    pack: str


class ChunkPipeline:
    """Numbers chunks and stores them. Numbers are assigned at once, locations are known after `wait_until_stored`."""

    def __init__(
        self,
        packs: PackWriter,
        compressor: Compressor,
        seal: ChunkSeal,
        earlier: Callable[[bytes], ChunkLocation | None],
    ) -> None:
        """Create a pipeline; `earlier` finds a chunk of an earlier generation by its digest."""
        self._packs = packs
        self._compressor = compressor
        self._seal = seal
        self._earlier = earlier
        self._stored: dict[bytes, ChunkLocation] = {}
        threads = min(MAX_THREADS, max(2, len(os.sched_getaffinity(0))))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store-chunk")
        self._slots = threading.BoundedSemaphore(2 * threads)
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        self._locations: dict[int, ChunkLocation] = {}
        self._numbers: dict[ChunkLocation, int] = {}
        self._next = 0
        self._failure: BaseException | None = None
        self.new_bytes = 0
        self.stored_bytes = 0
        self.repeated_bytes = 0
        """Whole chunks that are stored already, by digest."""

    def raise_if_failed(self) -> None:
        """Raise the first failure of a thread, if any."""
        if self._failure is None:
            return
        if isinstance(self._failure, CedanaSchedError):
            raise self._failure
        raise StoreError(f"storing a chunk failed: {self._failure}") from self._failure

    def new_number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def number_of_earlier_chunk(self, location: ChunkLocation) -> int:
        """Return the number in this snapshot of a chunk that an earlier generation has stored."""
        with self._lock:
            number = self._numbers.get(location)
            if number is None:
                number = self._numbers[location] = self._next
                self._locations[number] = location
                self._next += 1
            return number

    def take_buffer(self) -> bytearray:
        with self._lock:
            return self._buffers.pop() if self._buffers else bytearray(CHUNK_BYTES)

    def submit(self, number: int, buffer: bytearray, length: int) -> None:
        """Submit a chunk; the pipeline owns the buffer from now on."""
        self._slots.acquire()
        try:
            self.raise_if_failed()
            future = self._pool.submit(self._store_chunk, number, buffer, length)
        except BaseException:
            self._slots.release()
            self.raise_if_failed()
            raise
        future.add_done_callback(self._on_chunk_stored)

    def wait_until_stored(self) -> None:
        """Wait until every submitted chunk is in a pack.

        Raises:
            StoreError: a chunk could not be stored.
        """
        self._pool.shutdown()
        self.raise_if_failed()

    def abort(self) -> None:
        """Stop the threads as soon as possible."""
        if self._failure is None:
            self._failure = StoreError("the snapshot was given up")
        self._pool.shutdown(cancel_futures=True)

    def chunk_table(self) -> tuple[Chunks, tuple[str, ...]]:
        """Return the manifest's chunk table and the names of its packs, ordered by number."""
        packs: dict[str, int] = {}
        rows = [self._locations[number] for number in range(self._next)]
        numbers = [packs.setdefault(row.pack, len(packs)) for row in rows]
        return _encode_columns(rows, numbers), tuple(packs)

    def _store_chunk(self, number: int, buffer: bytearray, length: int) -> None:
        if self._failure is not None:
            return
        with memoryview(buffer)[:length] as chunk:
            digest = self._seal.digest_chunk(chunk)
            location = self._stored.get(digest) or self._earlier(digest)
            repeated = location is not None
            if location is None:
                location = self._append(chunk, digest)
        with self._lock:
            self.repeated_bytes += length if repeated else 0
            self._locations[number] = location
            self._buffers.append(buffer)

    def _append(self, chunk: memoryview, digest: bytes) -> ChunkLocation:
        begun = time.monotonic()
        codec, compressed_chunk = self._compressor.compress(chunk)
        payload = self._seal.seal_chunk(digest, compressed_chunk)
        compressed = time.monotonic()
        pack, offset = self._packs.append(payload)
        self._compressor.record_chunk_times(compressed - begun, time.monotonic() - compressed)
        location = ChunkLocation(Chunk(digest, 0, offset, len(payload), len(chunk), codec), pack)
        with self._lock:
            self._stored[digest] = location
            self.new_bytes += len(chunk)
            self.stored_bytes += len(payload)
        return location

    def _on_chunk_stored(self, future: Future[None]) -> None:
        self._slots.release()
        if not future.cancelled() and (error := future.exception()) is not None and self._failure is None:
            self._failure = error


def _encode_columns(rows: list[ChunkLocation], packs: list[int]) -> Chunks:
    def column(width: int, values: list[int]) -> bytes:
        return b"".join(value.to_bytes(width, "little") for value in values)

    return Chunks(
        digests=b"".join(row.chunk.digest for row in rows),
        packs=column(4, packs),
        offsets=column(8, [row.chunk.offset for row in rows]),
        stored=column(4, [row.chunk.stored for row in rows]),
        sizes=column(4, [row.chunk.size for row in rows]),
        codecs=column(1, [row.chunk.codec for row in rows]),
    )


class PackWriter:
    """Appends payloads from several threads."""

    def __init__(self, backend: Backend, namespace: str, writer: str, pack_bytes: int) -> None:
        self._backend = backend
        self._namespace = namespace
        self._writer = writer
        self._pack_bytes = pack_bytes
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._filled = 0
        self._finishers = ThreadPoolExecutor(_FINISHING, thread_name_prefix="store-pack")
        self._waiting: list[Future[None]] = []
        self.names: list[str] = []
        """Of the packs started."""

    def append(self, payload: Buffer) -> tuple[str, int]:
        """Return the pack's name and the offset in it; blocks while the store is slower."""
        with self._lock:
            sink = self._sink or self._begin_pack()
            name, offset = self.names[-1], self._filled
            sink.write(payload)
            self._filled += len(payload)
            if self._filled >= self._pack_bytes:
                self._submit_finish()
            return name, offset

    def finish(self) -> None:
        """Wait until every pack is durable."""
        with self._lock:
            self._submit_finish()
            self._wait_for_packs(0)
        self._finishers.shutdown()

    def abort(self) -> None:
        """Discard unfinished packs; the caller must delete the finished ones."""
        self._finishers.shutdown(wait=True, cancel_futures=False)
        with self._lock:
            if self._sink is not None:
                self._sink.abort()
                self._sink = None

    def _begin_pack(self) -> Sink:
        self._wait_for_packs(_FINISHING - 1)
        name = f"{self._writer}-{len(self.names):06d}"
        self._sink = self._backend.open_sink(layout.pack_key(self._namespace, name))
        self._filled = 0
        self.names.append(name)
        return self._sink

    def _submit_finish(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            self._waiting.append(self._finishers.submit(_finish_pack, sink))

    def _wait_for_packs(self, at_most: int) -> None:
        """Wait until at most so many packs are unfinished; raises the error of a failed one."""
        while len(self._waiting) > at_most:
            self._waiting.pop(0).result()


def _finish_pack(sink: Sink) -> None:
    try:
        sink.finish()
    except BaseException:
        sink.abort()
        raise
