"""The threaded pipeline from full chunk buffers to packs: digest, deduplicate, compress, seal, append.

Work in flight is bounded, so `submit` blocks while compression or the store is slower than the producer. The first
failure is kept, and every later call raises it: no thread's error is lost.
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
from cedana_sched.store.compression import Compressor
from cedana_sched.store.packs import PackWriter
from cedana_sched.store.sealing.seal import ChunkSeal

CHUNK_BYTES = 1 << 20
MAX_THREADS = 8


class Location(NamedTuple):
    """A chunk's position in a named pack, of this snapshot or of an earlier one."""

    chunk: Chunk
    pack: str


class ChunkPipeline:
    """Numbers chunks and stores them. Numbers are assigned at once, locations are known after `drain`."""

    def __init__(
        self,
        packs: PackWriter,
        writer: str,
        compressor: Compressor,
        seal: ChunkSeal,
        earlier: Callable[[bytes], Location | None] = lambda _: None,
    ) -> None:
        """Create a pipeline; `earlier` finds a chunk of an earlier generation by its digest."""
        self._packs = packs
        self._writer = writer
        self._compressor = compressor
        self._seal = seal
        self._earlier = earlier
        self._stored: dict[bytes, Location] = {}
        threads = min(MAX_THREADS, max(2, len(os.sched_getaffinity(0))))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store-chunk")
        self._slots = threading.BoundedSemaphore(2 * threads)
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        self._locations: dict[int, Location] = {}
        self._numbers: dict[Location, int] = {}
        self._next = 0
        self._failure: BaseException | None = None
        self.new_bytes = 0
        self.stored_bytes = 0
        self.repeated_bytes = 0
        """Whole chunks that are stored already, by digest."""

    def check(self) -> None:
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

    def number_of(self, location: Location) -> int:
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
            self.check()
            future = self._pool.submit(self._store, number, buffer, length)
        except BaseException:
            self._slots.release()
            self.check()
            raise
        future.add_done_callback(self._done)

    def drain(self) -> None:
        """Wait until every submitted chunk is in a pack.

        Raises:
            StoreError: a chunk could not be stored.
        """
        self._pool.shutdown()
        self.check()

    def abort(self) -> None:
        """Stop the threads as soon as possible."""
        if self._failure is None:
            self._failure = StoreError("the snapshot was given up")
        self._pool.shutdown(cancel_futures=True)

    def table(self) -> tuple[Chunks, tuple[str, ...]]:
        """Return the manifest's chunk table and the names of its packs, ordered by number."""
        packs: dict[str, int] = {}
        rows = [self._locations[number] for number in range(self._next)]
        numbers = [packs.setdefault(row.pack, len(packs)) for row in rows]
        return _columns(rows, numbers), tuple(packs)

    def _store(self, number: int, buffer: bytearray, length: int) -> None:
        if self._failure is not None:
            return
        with memoryview(buffer)[:length] as chunk:
            digest = self._seal.digest(chunk)
            location = self._stored.get(digest) or self._earlier(digest)
            repeated = location is not None
            if location is None:
                location = self._append(chunk, digest)
        with self._lock:
            self.repeated_bytes += length if repeated else 0
            self._locations[number] = location
            self._buffers.append(buffer)

    def _append(self, chunk: memoryview, digest: bytes) -> Location:
        begun = time.monotonic()
        codec, compressed_chunk = self._compressor.compress(chunk)
        payload = self._seal.close(digest, compressed_chunk)
        compressed = time.monotonic()
        pack, offset = self._packs.append(payload)
        self._compressor.observe(compressed - begun, time.monotonic() - compressed)
        location = Location(Chunk(digest, 0, offset, len(payload), len(chunk), codec), f"{self._writer}-{pack:06d}")
        with self._lock:
            self._stored[digest] = location
            self.new_bytes += len(chunk)
            self.stored_bytes += len(payload)
        return location

    def _done(self, future: Future[None]) -> None:
        self._slots.release()
        if not future.cancelled() and (error := future.exception()) is not None and self._failure is None:
            self._failure = error


def _columns(rows: list[Location], packs: list[int]) -> Chunks:
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
