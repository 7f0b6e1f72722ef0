"""What a snapshot consists of: its streams as runs of chunks, where each chunk lies, and how it was taken.

The store writes a manifest last, and it is the commit; readers need nothing else to find every byte. Tables are
columns of little-endian integers in `bytes`: a snapshot of a large process has millions of rows, and a column
costs its bytes and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.lineage import Abandoned

FORMAT_VERSION = 1
"""Raised when an older reader could misread a newer manifest; fields with defaults may be added without it."""

ZERO_CHUNK = 0xFFFF_FFFF
"""Stands in a segment's chunk column for bytes that are all zero and stored nowhere."""

MOST_PACKS: Final = 400_000
"""25 TiB. With the next two, how much is read of a summary: a byte of it may become thirty in memory."""
MOST_LABELS: Final = 1_000
MOST_ABANDONED: Final = 10_000
"""They are generations that are there, of which 2,000 are kept in sight."""


class SnapshotMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever took the snapshot knows about it. Times are seconds since the epoch."""

    checkpoint_uid: str
    """The checkpoint that asked for it: repeating the checkpoint finds the same snapshot."""
    compatibility: Compatibility
    reason: str = ""
    adapter: str = ""
    taken_at: float
    """When the processes were frozen."""
    timings: dict[str, float] = {}
    """Seconds spent, by the name of the phase."""
    runtime: dict[str, Any] = {}
    """JSON values that the runtime wants back when it continues the snapshot; opaque to the store."""
    labels: dict[str, str] = {}


class TransferStats(msgspec.Struct, frozen=True):
    """Where the bytes of a snapshot went: read = zero + reused + new; `stored_bytes` is new, compressed."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0


class SnapshotSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of snapshots shows; the store reads it without reading the tables."""

    ref: SnapshotRef
    writer: str
    """Who wrote it: a writer's packs carry its name."""
    checkpoint_uid: str
    committed_at: float
    taken_at: float
    reason: str
    adapter: str
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_LABELS)]
    stats: TransferStats
    packs: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_PACKS)]
    """Every pack the snapshot needs, its own and those of earlier generations."""
    page_index: str | None
    """Key of the page fingerprints beside the manifest, if there are any."""
    run: str = ""
    """Which start of the program it was taken of; empty where the writer was not told."""
    abandons: Annotated[tuple[Abandoned, ...], msgspec.Meta(max_length=MOST_ABANDONED)] = ()
    """What this line of work does not continue, newest first; a generation hands it on to those that follow it."""

    @property
    def leaves(self) -> SnapshotRef | None:
        """What was continued by nobody any more when this very snapshot was taken, if there is such a thing."""
        newest = self.abandons[0] if self.abandons else None
        is_first = newest is not None and newest.since == self.taken_at
        return SnapshotRef(self.ref.identity, newest.generation) if newest is not None and is_first else None


class Segment(NamedTuple):
    """A run of a stream: `length` bytes at `offset` of a chunk, or zeros."""

    chunk: int
    offset: int
    length: int


class Segments(msgspec.Struct, frozen=True):
    """A stream from its first byte to its last, as columns: u32 chunk, u32 offset, u64 length."""

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
    """Where a chunk lies: `stored` bytes at `offset` of a pack become `size` bytes that have this digest."""

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
    """The fingerprints of the stored pages, so that the next generation recognises them.

    `blocks` says whose pages they are, in the order of the index: pairs of u32, stream number and page count.
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
    """Name of the key under which its chunks and page fingerprints are sealed; empty where they are not."""

    @property
    def ref(self) -> SnapshotRef:
        return self.summary.ref

    @property
    def size_bytes(self) -> int:
        """What staging the snapshot yields, zeros included."""
        return sum(stream.size_bytes for stream in self.streams)
