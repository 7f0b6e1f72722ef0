"""Writing of one stream into the store.

Streams up to 64 KiB share chunks: a process has hundreds of them, most of a few hundred bytes. Longer ones are
processed page by page; new pages are packed densely into chunks, so that scattered changes do not cost whole chunks.

A stream's name is the name of its staged file, or `folder/name`, where a snapshot has several process trees or parts of
no tree; there are no deeper folders.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from cedana_sched.model.manifest import ZERO_CHUNK, Segments, StreamEntry
from cedana_sched.store.backend import Buffer
from cedana_sched.store.chunk_pipeline import CHUNK_BYTES, ChunkLocation, ChunkPipeline
from cedana_sched.store.page_classification import (
    KNOWN,
    NEW,
    NOWHERE,
    PAGE_BYTES,
    ZERO,
    KnownPages,
    PageClassifier,
    PageRun,
)

SMALL_BYTES = 64 << 10
BATCH_BYTES = 1 << 20


def is_stream_name(name: str) -> bool:
    """Return whether a stream may have this name: it must be safe as the name of a staged file."""
    parts = name.split("/")
    return len(parts) <= 2 and all(part and part not in {".", ".."} and "\0" not in part for part in parts)


class Counters:
    """Progress in bytes; other threads may read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read_bytes = 0
        self.zero_bytes = 0
        self.reused_bytes = 0

    def add(self, *, read: int = 0, zero: int = 0, reused: int = 0) -> None:
        with self._lock:
            self.read_bytes += read
            self.zero_bytes += zero
            self.reused_bytes += reused


class SegmentList:
    """Segments in order, adjacent ones merged."""

    def __init__(self) -> None:
        self._chunks = array("I")
        self._offsets = array("I")
        self._lengths = array("Q")

    def append(self, chunk: int, offset: int, length: int) -> None:
        adjoins = self._chunks and self._chunks[-1] == chunk
        if adjoins and (chunk == ZERO_CHUNK or self._offsets[-1] + self._lengths[-1] == offset):
            self._lengths[-1] += length
            return
        self._chunks.append(chunk)
        self._offsets.append(offset)
        self._lengths.append(length)

    def freeze(self) -> Segments:
        return Segments(self._chunks.tobytes(), self._offsets.tobytes(), self._lengths.tobytes())


class ChunkFiller:
    """Packs bytes densely into chunks. Not thread-safe."""

    def __init__(self, pipeline: ChunkPipeline) -> None:
        self._pipeline = pipeline
        self._buffer: bytearray | None = None
        self._number = self._filled = 0

    def append(self, data: memoryview, segments: SegmentList) -> None:
        while data:
            if self._buffer is None:
                self._buffer = self._pipeline.take_buffer()
                self._number, self._filled = self._pipeline.new_number(), 0
            length = min(len(data), CHUNK_BYTES - self._filled)
            self._buffer[self._filled : self._filled + length] = data[:length]
            segments.append(self._number, self._filled, length)
            self._filled += length
            data = data[length:]
            if self._filled == CHUNK_BYTES:
                self.submit_partial_chunk()

    def submit_partial_chunk(self) -> None:
        """Submit the partial chunk."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pipeline.submit(self._number, buffer, self._filled)


class ReuseSource(Protocol):
    """What an earlier generation offers for reuse."""

    pages: KnownPages

    def chunk_location(self, chunk: int) -> ChunkLocation:
        """Return the location of a chunk of the earlier manifest by its number."""


class StreamWriter:
    """One stream; one thread calls `write` and `close`, while other threads may write other streams."""

    def __init__(
        self,
        name: str,
        pipeline: ChunkPipeline,
        counters: Counters,
        classifier: PageClassifier,
        *,
        reuse: ReuseSource | None,
        index: Callable[[StreamWriter, bytes], None],
        append_small: Callable[[memoryview, SegmentList], None],
    ) -> None:
        self.name = name
        self.closed = False
        self.size_bytes = 0
        self._pipeline = pipeline
        self._counters = counters
        self._classifier = classifier
        self._reuse = reuse
        self._index = index
        self._append_small = append_small
        self._filler = ChunkFiller(pipeline)
        self._segments = SegmentList()
        self._head: bytearray | None = bytearray()
        self._partial = bytearray()

    def write(self, data: Buffer) -> None:
        """Accept data of any length; the buffer may be reused afterwards. Blocks while the store is slower.

        Raises:
            StoreError: the store failed, here or in another stream of the same snapshot.
        """
        self._pipeline.raise_if_failed()
        view = memoryview(data).cast("B")
        self.size_bytes += len(view)
        self._counters.add(read=len(view))
        if self._head is not None:
            if len(self._head) + len(view) <= SMALL_BYTES:
                self._head += view
                return
            head, self._head = self._head, None
            self._split_into_pages(memoryview(head))
        self._split_into_pages(view)

    def close(self) -> None:
        """Complete the stream."""
        if self.closed:
            return
        if self._head is not None:
            self._append_small(memoryview(self._head), self._segments)
        else:
            self._filler.append(memoryview(bytes(self._partial)), self._segments)
            self._filler.submit_partial_chunk()
        self.closed = True

    def to_stream_entry(self) -> StreamEntry:
        return StreamEntry(self.name, self.size_bytes, self._segments.freeze())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def _split_into_pages(self, view: memoryview) -> None:
        if self._partial:
            taken = min(PAGE_BYTES - len(self._partial), len(view))
            self._partial += view[:taken]
            view = view[taken:]
            if len(self._partial) < PAGE_BYTES:
                return
            page, self._partial = self._partial, bytearray()
            self._write_pages(memoryview(page))
        whole = len(view) // PAGE_BYTES * PAGE_BYTES
        for at in range(0, whole, BATCH_BYTES):
            self._write_pages(view[at : min(at + BATCH_BYTES, whole)])
        self._partial += view[whole:]

    def _write_pages(self, pages: memoryview) -> None:
        runs, fingerprints = self._classifier.classify(pages)
        for run in runs:
            begin, length = run.first * PAGE_BYTES, run.pages * PAGE_BYTES
            if run.kind == ZERO:
                self._segments.append(ZERO_CHUNK, 0, length)
                self._counters.add(zero=length)
            elif run.kind == NEW:
                self._filler.append(pages[begin : begin + length], self._segments)
            else:
                self._reference_known_pages(run, pages[begin : begin + length])
        if fingerprints:
            self._index(self, fingerprints)

    def _reference_known_pages(self, run: PageRun, pages: memoryview) -> None:
        assert run.kind == KNOWN and self._reuse is not None  # noqa: S101, PT018 - nothing is known otherwise
        for place in self._reuse.pages.places.segments_of(run.position, run.pages):
            if place.chunk == NOWHERE:
                self._filler.append(pages[: place.length], self._segments)
            else:
                number = self._pipeline.number_of_earlier_chunk(self._reuse.chunk_location(place.chunk))
                self._segments.append(number, place.offset, place.length)
                self._counters.add(reused=place.length)
            pages = pages[place.length :]
