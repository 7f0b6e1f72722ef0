"""Seals for writers and readers, in two kinds: none, and that of a data key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from blake3 import blake3

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store.backend import Buffer, Sink
from cedana_sched.store.sealing.aead import NONCE_BYTES, TAG_BYTES, CountedKey, derive_key, encode_context
from cedana_sched.store.sealing.data_keys import DataKey

INDEX_BLOCK_BYTES = 4 << 20
"""Page fingerprints are sealed in blocks of this size, so that a part of them can be read."""


class ChunkSeal(Protocol):
    """Seal of one identity's chunks. Thread-safe."""

    def digest_chunk(self, chunk: Buffer) -> bytes:
        """Return 32 bytes, equal for equal chunks only."""

    def seal_chunk(self, digest: bytes, payload: Buffer) -> Buffer:
        """Seal a compressed chunk; the result is valid until the same thread seals another one."""

    def open(self, writer: str, digest: bytes, stored: Buffer) -> Buffer:
        """Open the compressed chunk that this writer stored.

        Raises:
            IntegrityError: this was not sealed as the chunk of this digest.
        """


class IndexSeal(Protocol):
    """Seal of one snapshot's page fingerprints."""

    block_bytes: int
    """Bytes of a block before it is sealed; blocks are read whole."""
    added_bytes: int
    """Bytes that the seal adds to a block."""

    def wrap_sink(self, sink: Sink) -> Sink:
        """Return a sink that seals fingerprints and writes them to `sink`."""

    def open(self, number: int, block: Buffer) -> Buffer:
        """Open the fingerprints of the n-th block.

        Raises:
            IntegrityError: this was not sealed as this block.
        """


class Seal(Protocol):
    """Seal of one namespace's snapshots."""

    data_key: str
    """Name of the data key; empty without a seal."""

    def chunk_seal(self, identity: Identity, writer: str = "") -> ChunkSeal:
        """Return the seal of an identity's chunks; `writer` is required to store chunks."""

    def index_seal(self, ref: SnapshotRef, writer: str) -> IndexSeal:
        """Return the seal of the page fingerprints that this writer stores with a snapshot."""


class _UnsealedChunks:
    """Unsealed chunks."""

    def digest_chunk(self, chunk: Buffer) -> bytes:
        return blake3(chunk).digest()

    def seal_chunk(self, digest: bytes, payload: Buffer) -> Buffer:  # noqa: ARG002 - the protocol's
        return payload

    def open(self, writer: str, digest: bytes, stored: Buffer) -> Buffer:  # noqa: ARG002 - the protocol's
        return stored


class _UnsealedIndex:
    block_bytes = 8 << 20
    added_bytes = 0

    def wrap_sink(self, sink: Sink) -> Sink:
        return sink

    def open(self, number: int, block: Buffer) -> Buffer:  # noqa: ARG002 - the protocol's
        return block


class _NoSeal:
    data_key = ""

    def chunk_seal(self, identity: Identity, writer: str = "") -> ChunkSeal:  # noqa: ARG002 - the protocol's
        return _UnsealedChunks()

    def index_seal(self, ref: SnapshotRef, writer: str) -> IndexSeal:  # noqa: ARG002 - the protocol's
        return _UnsealedIndex()


NO_SEAL: Seal = _NoSeal()


class NamespaceSeal:
    """Seal under one data key of a namespace."""

    def __init__(self, key: DataKey) -> None:
        self.key = key
        self.data_key = key.name

    def chunk_seal(self, identity: Identity, writer: str = "") -> ChunkSeal:
        return _SealedChunks(self.key, identity, writer)

    def index_seal(self, ref: SnapshotRef, writer: str) -> IndexSeal:
        return _SealedIndex(self.key, ref, writer)


class _SealedChunks:
    """A stored chunk is its number among those of its writer (12 bytes, the nonce), then the ciphertext and its tag.

    Digests are keyed: without the data key a digest reveals neither the chunk, nor that two namespaces have it.
    """

    def __init__(self, key: DataKey, identity: Identity, writer: str) -> None:
        self._secret = key.secret
        self._identity = str(identity)
        self._writer = writer
        self._digest_key = derive_key(key.secret, "chunk digests")
        self._numbers = count()
        self._keys: dict[str, CountedKey] = {}
        self._of_thread = threading.local()

    def digest_chunk(self, chunk: Buffer) -> bytes:
        return blake3(chunk, key=self._digest_key).digest()

    def seal_chunk(self, digest: bytes, payload: Buffer) -> Buffer:
        number, length = next(self._numbers), NONCE_BYTES + len(payload) + TAG_BYTES
        stored = self._thread_buffer(length)[:length]
        stored[:NONCE_BYTES] = number.to_bytes(NONCE_BYTES, "little")
        self._key_of_writer(self._writer).seal_into(number, payload, self._seal_context(digest), stored[NONCE_BYTES:])
        return stored

    def open(self, writer: str, digest: bytes, stored: Buffer) -> Buffer:
        view = memoryview(stored)
        number = int.from_bytes(view[:NONCE_BYTES], "little")
        return self._key_of_writer(writer).open(number, view[NONCE_BYTES:], self._seal_context(digest))

    def _thread_buffer(self, length: int) -> memoryview:
        buffer: memoryview | None = getattr(self._of_thread, "buffer", None)
        if buffer is None or len(buffer) < length:
            buffer = self._of_thread.buffer = memoryview(bytearray(length))
        return buffer

    def _key_of_writer(self, writer: str) -> CountedKey:
        key = self._keys.get(writer)
        if key is None:
            key = self._keys[writer] = CountedKey(derive_key(self._secret, "chunks", writer.encode()))
        return key

    def _seal_context(self, digest: bytes) -> bytes:
        return encode_context("chunk", self._identity, digest)


class _SealedIndex:
    block_bytes = INDEX_BLOCK_BYTES
    added_bytes = TAG_BYTES

    def __init__(self, key: DataKey, ref: SnapshotRef, writer: str) -> None:
        self._key = CountedKey(derive_key(key.secret, "page fingerprints", writer.encode()))
        self._place = encode_context("page fingerprints", str(ref))

    def wrap_sink(self, sink: Sink) -> Sink:
        return _BlockSink(sink, lambda number, block: self._key.seal(number, block, self._place))

    def open(self, number: int, block: Buffer) -> Buffer:
        return self._key.open(number, block, self._place)


class _BlockSink:
    """Buffers blocks, seals and writes each. The manifest has their number, and the length of the last one."""

    def __init__(self, sink: Sink, seal: _BlockSealer) -> None:
        self._sink = sink
        self._seal = seal
        self._numbers = count()
        self._gathered = bytearray()

    def write(self, data: Buffer) -> None:
        self._gathered += data
        while len(self._gathered) >= INDEX_BLOCK_BYTES:
            self._write_block(self._gathered[:INDEX_BLOCK_BYTES])
            del self._gathered[:INDEX_BLOCK_BYTES]

    def finish(self) -> None:
        if self._gathered:
            self._write_block(self._gathered)
        self._sink.finish()

    def abort(self) -> None:
        self._sink.abort()

    def _write_block(self, block: Buffer) -> None:
        self._sink.write(self._seal(next(self._numbers), block))


class _BlockSealer(Protocol):
    def __call__(self, number: int, block: Buffer, /) -> bytes: ...


def stored_blocks(seal: IndexSeal, length: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length, in the store, of each block of an index of `length` bytes, in order."""
    step = seal.block_bytes + seal.added_bytes
    for number, begin in enumerate(range(0, length, seal.block_bytes)):
        yield number * step, min(seal.block_bytes, length - begin) + seal.added_bytes
