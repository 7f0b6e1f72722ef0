"""Chunk compression with an adaptive level.

Every codec here releases the interpreter lock. Under AUTO the effort follows the store: while threads wait for the
store, more compression costs nothing and saves time; otherwise compression is the bottleneck.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import lz4.block
import zstandard

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.policy import Compression
from cedana_sched.store.backend import Buffer
from cedana_sched.store.decoding import decompress_bounded

RAW, LZ4, ZSTD = 0, 1, 2
"""Codec numbers in the manifest's chunk table; never renumber."""

_WORTHWHILE = 0.95
_SAMPLES, _SAMPLE_BYTES = 11, 512
"""An odd number of samples: memory is periodic in powers of two, and the samples must not be."""
_DECIDE_AFTER = 16
_MOSTLY_WAITING, _HARDLY_WAITING = 0.5, 0.1


class Effort(NamedTuple):
    """A codec and its level."""

    codec: int
    level: int


_LADDER = (Effort(RAW, 0), Effort(LZ4, 0), Effort(ZSTD, 1), Effort(ZSTD, 3))
_FIXED = {
    Compression.NONE: Effort(RAW, 0),
    Compression.LZ4: Effort(LZ4, 0),
    Compression.ZSTD: Effort(ZSTD, 1),
}


class Compressor:
    """Compresses chunks in several threads, and adapts its effort to `record_chunk_times`."""

    def __init__(self, compression: Compression) -> None:
        self._fixed = _FIXED.get(compression)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._rung = 1
        self._working = self._waiting = 0.0
        self._observed = 0

    @property
    def next_effort(self) -> Effort:
        """Effort for the next chunk."""
        return self._fixed or _LADDER[self._rung]

    def compress(self, chunk: memoryview) -> tuple[int, Buffer]:
        """Return codec and payload; the chunk itself if compression does not pay."""
        effort = self.next_effort
        if effort.codec == RAW or looks_random(chunk):
            return RAW, chunk
        payload = (
            lz4.block.compress(chunk, store_size=False)
            if effort.codec == LZ4
            else self._compress_with_zstd(effort, chunk)
        )
        if len(payload) > len(chunk) * _WORTHWHILE:
            return RAW, chunk
        return effort.codec, payload

    def record_chunk_times(self, working_seconds: float, waiting_seconds: float) -> None:
        """Record how long a chunk was processed, and how long it then waited for the store."""
        with self._lock:
            self._working += working_seconds
            self._waiting += waiting_seconds
            self._observed += 1
            if self._observed < _DECIDE_AFTER:
                return
            share = self._waiting / (self._waiting + self._working or 1.0)
            if share > _MOSTLY_WAITING:
                self._rung = min(self._rung + 1, len(_LADDER) - 1)
            elif share < _HARDLY_WAITING:
                self._rung = max(self._rung - 1, 0)
            self._working = self._waiting = 0.0
            self._observed = 0

    def _compress_with_zstd(self, effort: Effort, chunk: memoryview) -> bytes:
        """Compress with one context per thread and level: contexts are not thread-safe, and expensive to create."""
        contexts: dict[int, zstandard.ZstdCompressor] | None = getattr(self._local, "contexts", None)
        if contexts is None:
            contexts = self._local.contexts = {}
        if effort.level not in contexts:
            contexts[effort.level] = zstandard.ZstdCompressor(level=effort.level, write_checksum=False)
        return contexts[effort.level].compress(chunk)


def looks_random(chunk: memoryview) -> bool:
    """Return whether samples of the chunk do not compress at all: encrypted or compressed data, random numbers."""
    if len(chunk) < 2 * _SAMPLES * _SAMPLE_BYTES:
        return False
    step = len(chunk) // _SAMPLES
    sample = b"".join(chunk[at : at + _SAMPLE_BYTES] for at in range(0, step * _SAMPLES, step))
    return len(lz4.block.compress(sample, store_size=False)) >= len(sample)


def decompress(codec: int, payload: Buffer, size: int) -> Buffer:
    """Decompress a chunk of `size` bytes.

    Raises:
        IntegrityError: the payload is not the one that was written.
    """
    try:
        if codec == RAW:
            chunk: Buffer = payload
        elif codec == LZ4:
            chunk = lz4.block.decompress(payload, uncompressed_size=size)
        elif codec == ZSTD:
            chunk = decompress_bounded(payload, size)
        else:
            raise IntegrityError(f"codec {codec} does not exist")
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise IntegrityError(f"it cannot be decompressed: {error}") from error
    if len(chunk) != size:
        raise IntegrityError(f"it has {len(chunk)} bytes, not {size}")
    return chunk
