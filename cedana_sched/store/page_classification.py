"""Classification of memory pages: zero, stored by an earlier generation, or new.

Every page is fingerprinted with XXH3-128 under a random seed of its identity (a page costs 0.4 µs, against 1.3 µs for
BLAKE3), and looked up among the pages of the previous generation. The probability that two different pages of 100 GiB
collide by chance is 2⁻⁷⁸; to force a collision, a tenant would need the seed, and could only corrupt their own
snapshot. Reads verify the chunk's BLAKE3 digest all the same.

Pages mostly keep their order from one generation to the next, so the expected next page is compared first, a batch in
one comparison; the table is consulted only if that fails. Beyond half a million pages the table has every n-th: a run
of known pages is then recognized from its first such page on. All of this is built while a workload is frozen, so the
cost must be negligible: the table has a bounded number of rows, and the positions of pages are looked up in the
manifest's own columns.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from mmap import mmap
from operator import mul, ne
from typing import NamedTuple

from xxhash import xxh3_128_digest

from cedana_sched.model.manifest import ZERO_CHUNK, Segment, Segments

PAGE_BYTES = 4096
FINGERPRINT_BYTES = 16
TABLE_PAGES = 1 << 19
"""Maximum entries of the look-up table, 8 to 16 bytes each."""

ZERO, NEW, KNOWN = 0, 1, 2
NOWHERE = 0xFFFF_FFFF
_ZERO_PAGE = bytes(PAGE_BYTES)


class PageRun(NamedTuple):
    """Pages `first` to `first + pages` of a batch, and for KNOWN ones the position in the index."""

    kind: int
    first: int
    pages: int
    position: int = 0


class Fingerprinter:
    """Computes fingerprints under one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.zero = xxh3_128_digest(_ZERO_PAGE, seed)

    def fingerprint_pages(self, pages: memoryview) -> list[bytes]:
        """Return one fingerprint per page; the length must be a multiple of the page size."""
        seed = self.seed
        return [xxh3_128_digest(pages[at : at + PAGE_BYTES], seed) for at in range(0, len(pages), PAGE_BYTES)]


class PageSegmentLookup:
    """Positions of an index's pages: 8 bytes per segment, beside the manifest's own columns.

    Args:
        streams: the segments of every stream of the manifest.
        blocks: the blocks of the index, in its order: stream number and page count, alternating.
        reusable: per chunk, whether it may be referenced again.
    """

    def __init__(self, streams: Sequence[Segments], blocks: Sequence[int], reusable: Sequence[bool]) -> None:
        self._reusable = reusable
        self._streams = {number: _DataSegments(streams[number]) for number in set(blocks[::2])}
        self._owners = array("I", blocks[::2])
        self._starts = array("Q", accumulate(blocks[1::2], initial=0))
        self._offsets = array("Q")
        seen = dict.fromkeys(self._streams, 0)
        for owner, pages in zip(self._owners, blocks[1::2], strict=True):
            self._offsets.append(seen[owner])
            seen[owner] += pages * PAGE_BYTES

    def segments_of(self, position: int, count: int) -> Iterator[Segment]:
        """Yield the segments of `count` pages from an index position; chunk `NOWHERE` must not be reused."""
        block = bisect_right(self._starts, position) - 1
        while count:
            pages = min(count, self._starts[block + 1] - position)
            begin = self._offsets[block] + (position - self._starts[block]) * PAGE_BYTES
            for segment in self._streams[self._owners[block]].segments_in_range(begin, pages * PAGE_BYTES):
                yield segment if self._reusable[segment.chunk] else segment._replace(chunk=NOWHERE)
            position += pages
            count -= pages
            block += 1


class _DataSegments:
    """The segments of one stream by their position among its non-zero bytes."""

    def __init__(self, segments: Segments) -> None:
        self._chunks = memoryview(segments.chunks).cast("I")
        self._offsets = memoryview(segments.offsets).cast("I")
        lengths = memoryview(segments.lengths).cast("Q")
        is_data = map(ne, self._chunks, repeat(ZERO_CHUNK))
        self._starts = array("Q", accumulate(map(mul, lengths, is_data), initial=0))

    def segments_in_range(self, begin: int, length: int) -> Iterator[Segment]:
        row = bisect_right(self._starts, begin) - 1  # zeros start where the data after them does: take the data
        while length:
            part = min(length, self._starts[row + 1] - begin)
            if part:
                yield Segment(self._chunks[row], self._offsets[row] + begin - self._starts[row], part)
            begin += part
            length -= part
            row += 1


class KnownPages:
    """Fingerprints of the previous generation, in the order in which its streams stored them.

    Looked up by an open-addressing hash table: entry numbers from 1, and 0 for a free row. Each entry stands for every
    n-th page of the index, so that the time to build the table is bounded.
    """

    def __init__(self, flat: bytes | mmap, places: PageSegmentLookup, table_pages: int = TABLE_PAGES) -> None:
        self._flat = flat
        self.places = places
        count = len(flat) // FINGERPRINT_BYTES
        self._stride = max(1, -(-count // table_pages))
        self._halves = memoryview(flat)[: count * FINGERPRINT_BYTES].cast("Q")[:: 2 * self._stride]
        self._mask = (1 << (2 * len(self._halves)).bit_length()) - 1
        self._table = array("I", bytes(4)) * (self._mask + 1)
        self._build_hash_table()

    def _build_hash_table(self) -> None:
        table, halves, mask = self._table, self._halves, self._mask
        for entry, half in enumerate(halves, 1):
            row = half & mask
            while (held := table[row]) and halves[held - 1] != half:
                row = (row + 1) & mask
            table[row] = entry

    def matches_at(self, position: int, fingerprints: bytes) -> bool:
        """Return whether exactly these pages follow at the position."""
        start = position * FINGERPRINT_BYTES
        return self._flat[start : start + len(fingerprints)] == fingerprints

    def find(self, fingerprint: bytes) -> int | None:
        """Return the position of a page, or None if unknown."""
        half = int.from_bytes(fingerprint[:8], sys.byteorder)
        row = half & self._mask
        while held := self._table[row]:
            if self._halves[held - 1] == half:
                position = (held - 1) * self._stride
                return position if self.matches_at(position, fingerprint) else None
            row = (row + 1) & self._mask
        return None


class PageClassifier:
    """Classifies one stream's pages, batch by batch; keeps the stream's position in the index."""

    def __init__(self, fingerprints: Fingerprinter, known: KnownPages | None) -> None:
        self._fingerprints = fingerprints
        self._known = known
        self._expected = 0

    def classify(self, pages: memoryview) -> tuple[list[PageRun], bytes]:
        """Return the runs of a batch, and the fingerprints of its non-zero pages."""
        prints = self._fingerprints.fingerprint_pages(pages)
        zero = self._fingerprints.zero
        joined = b"".join(prints)
        if zero not in prints:
            if self._known is None:
                return [PageRun(NEW, 0, len(prints))], joined
            if self._known.matches_at(self._expected, joined):
                self._expected += len(prints)
                return [PageRun(KNOWN, 0, len(prints), self._expected - len(prints))], joined
            return self._group_into_runs(prints), joined
        if prints.count(zero) == len(prints):
            return [PageRun(ZERO, 0, len(prints))], b""
        return self._group_into_runs(prints), b"".join(one for one in prints if one != zero)

    def _group_into_runs(self, prints: list[bytes]) -> list[PageRun]:
        """Classify each page. A new page is assumed to replace the expected one: pages change more than move."""
        runs: list[PageRun] = []
        kind, first, begin, position = -1, 0, 0, self._expected
        for number, fingerprint in enumerate(prints):
            found_kind, found = self._classify_page(fingerprint, position)
            if found_kind != kind or (found_kind == KNOWN and found != position):
                if kind >= 0:
                    runs.append(PageRun(kind, first, number - first, begin))
                kind, first, begin = found_kind, number, found
            position = found + (found_kind != ZERO)
        runs.append(PageRun(kind, first, len(prints) - first, begin))
        self._expected = position
        return runs

    def _classify_page(self, fingerprint: bytes, expected: int) -> tuple[int, int]:
        """Return the kind of a page, and its position in the index (the expected one if it has none)."""
        if fingerprint == self._fingerprints.zero:
            return ZERO, expected
        if self._known is None:
            return NEW, expected
        if self._known.matches_at(expected, fingerprint):
            return KNOWN, expected
        position = self._known.find(fingerprint)
        return (NEW, expected) if position is None else (KNOWN, position)
