"""Snapshot manifest: streams as runs of chunks, the location of each chunk, and metadata.

Writing the manifest, last, is the commit; readers need no other object to find every byte. Tables are columns of
little-endian integers in `bytes`: a large process has millions of rows, and a column has no per-row overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.lineage import Abandoned

FORMAT_VERSION = 1
"""Incremented when an older reader could misread a newer manifest; not for added fields with defaults."""

ZERO_CHUNK = 0xFFFF_FFFF
"""Entry of a segment's chunk column for all-zero bytes, which are not stored."""

MOST_PACKS: Final = 400_000
"""25 TiB. This and the next two bound the parsing of a summary: one byte may expand to thirty in memory."""
MOST_LABELS: Final = 1_000
MOST_ABANDONED: Final = 10_000
"""Abandoned generations are existing ones, of which the store reads at most 2,000 per workload."""


class SnapshotMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata supplied by the agent that took the snapshot. Times are seconds since the epoch."""

    checkpoint_uid: str
    """The checkpoint that created the snapshot: a repeated checkpoint finds the same snapshot."""
    compatibility: Compatibility
    reason: str = ""
    adapter: str = ""
    taken_at: float
    """When the processes were frozen."""
    timings: dict[str, float] = {}
    """Duration of each phase in seconds, by name."""
    runtime: dict[str, Any] = {}
    """JSON values that the runtime needs for the restore; opaque to the store."""
    labels: dict[str, str] = {}


class TransferStats(msgspec.Struct, frozen=True):
    """Byte counts of a snapshot: read = zero + reused + new; `stored_bytes` is new, compressed."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0


class SnapshotSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary for listings, readable without the tables."""

    ref: SnapshotRef
    writer: str
    """Name of the writer; part of the names of the writer's packs."""
    checkpoint_uid: str
    committed_at: float
    taken_at: float
    reason: str
    adapter: str
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_LABELS)]
    stats: TransferStats
    packs: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_PACKS)]
    """Every pack that the snapshot needs, including those of earlier generations."""
    page_index: str | None
    """Key of the page fingerprints beside the manifest, if any."""
    run: str = ""
    """The start of the program (`Lineage.run`); empty if unknown to the writer."""
    abandons: Annotated[tuple[Abandoned, ...], msgspec.Meta(max_length=MOST_ABANDONED)] = ()
    """Lineages that this one does not continue, newest first; inherited by following generations."""

    @property
    def abandoned_snapshot(self) -> SnapshotRef | None:
        """The generation that was abandoned when this snapshot was taken, if any."""
        newest = self.abandons[0] if self.abandons else None
        is_first = newest is not None and newest.since == self.taken_at
        return SnapshotRef(self.ref.identity, newest.generation) if newest is not None and is_first else None


class Segment(NamedTuple):
    """A run of a stream: `length` bytes at `offset` of a chunk, or zeros."""

    chunk: int
    offset: int
    length: int


class Segments(msgspec.Struct, frozen=True):
    """A complete stream in order, as columns: u32 chunk, u32 offset, u64 length."""

    chunks: bytes
    offsets: bytes
    lengths: bytes

    def __iter__(self) -> Iterator[Segment]:
        columns = (memoryview(self.chunks), memoryview(self.offsets), memoryview(self.lengths))
        rows = zip(columns[0].cast("I"), columns[1].cast("I"), columns[2].cast("Q"), strict=True)
        return map(Segment._make, rows)

    def __len__(self) -> int:
        return len(self.lengths) // 8


class StreamEntry(msgspec.Struct, frozen=True):
    """One named byte stream of the snapshot."""

    name: str
    size_bytes: int
    segments: Segments


class Chunk(NamedTuple):
    """Location of a chunk: `stored` bytes at `offset` of a pack decode to `size` bytes with this digest."""

    digest: bytes
    pack: int
    offset: int
    stored: int
    size: int
    codec: int


class Chunks(msgspec.Struct, frozen=True):
    """The chunks of a snapshot as columns: 32-byte BLAKE3 digest, u32 pack, u64 offset, u32, u32, u8 codec."""

    digests: bytes
    packs: bytes
    offsets: bytes
    stored: bytes
    sizes: bytes
    codecs: bytes

    def __len__(self) -> int:
        return len(self.codecs)

    def __getitem__(self, number: int) -> Chunk:
        if number >= len(self):
            raise IndexError(number)
        return Chunk(
            self.digests[number * 32 : number * 32 + 32],
            memoryview(self.packs).cast("I")[number],
            memoryview(self.offsets).cast("Q")[number],
            memoryview(self.stored).cast("I")[number],
            memoryview(self.sizes).cast("I")[number],
            self.codecs[number],
        )


class PageIndex(msgspec.Struct, frozen=True):
    """Fingerprints of the stored pages, for deduplication of the next generation.

    `blocks` maps the index to streams, in index order: pairs of u32, stream number and page count.
    """

    length: int
    digest: bytes
    blocks: bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A committed snapshot. `seed` is the secret under which this identity's pages are fingerprinted."""

    summary: SnapshotSummary
    metadata: SnapshotMetadata
    streams: tuple[StreamEntry, ...]
    chunks: Chunks
    seed: int
    page_index: PageIndex | None = None
    data_key: str = ""
    """Name of the key that seals the chunks and page fingerprints; empty if unsealed."""

    @property
    def ref(self) -> SnapshotRef:
        return self.summary.ref

    @property
    def size_bytes(self) -> int:
        """Total size of the staged streams, zeros included."""
        return sum(stream.size_bytes for stream in self.streams)
