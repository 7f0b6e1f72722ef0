"""Memory as pages: which are zero, which an earlier generation has stored, which are new.

Every page is fingerprinted with XXH3-128 under a random seed of its identity (a page costs 0.4 µs, against 1.3 µs
for BLAKE3), and looked up among the pages of the previous generation. Chance makes two different pages of 100 GiB
equal with a probability of 2⁻⁷⁸; somebody who wants to make them equal would have to know the seed, and could only
spoil his own snapshot. What is read back is verified by the chunk's BLAKE3 digest all the same.

Pages mostly stay in order from one generation to the next, so the page expected next is compared first, a batch of
them in one comparison; the table is asked only where that fails. Beyond half a million pages the table holds every
n-th: a run of known pages is then recognised from its first such page on. All of this is built while a workload is
frozen, so it must cost next to nothing: the table has a bounded number of rows, and where the pages lie is looked up
in the manifest's own columns.
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
"""The most entries of the look-up table, 8 to 16 bytes each."""

ZERO, NEW, KNOWN = 0, 1, 2
NOWHERE = 0xFFFF_FFFF
_ZERO_PAGE = bytes(PAGE_BYTES)


class Run(NamedTuple):
    """Pages `first` to `first + pages` of a batch, and for KNOWN ones the position in the index."""

    kind: int
    first: int
    pages: int
    position: int = 0


class Fingerprints:
    """Computes fingerprints under one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.zero = xxh3_128_digest(_ZERO_PAGE, seed)

    def of(self, pages: memoryview) -> list[bytes]:
        """One fingerprint for each page; the length is a multiple of the page size."""
        seed = self.seed
        return [xxh3_128_digest(pages[at : at + PAGE_BYTES], seed) for at in range(0, len(pages), PAGE_BYTES)]


class Places:
    """Where the pages of an index lie: 8 bytes for each segment, beside the manifest's own columns.

    Args:
        streams: the segments of every stream of the manifest.
        blocks: whose pages the index holds, in its order: stream number and page count, by turns.
        reusable: for each chunk, whether it may be named again.
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

    def of(self, position: int, count: int) -> Iterator[Segment]:
        """Where `count` pages from a position of the index lie; a segment of chunk `NOWHERE` must not be reused."""
        block = bisect_right(self._starts, position) - 1
        while count:
            pages = min(count, self._starts[block + 1] - position)
            begin = self._offsets[block] + (position - self._starts[block]) * PAGE_BYTES
            for segment in self._streams[self._owners[block]].part(begin, pages * PAGE_BYTES):
                yield segment if self._reusable[segment.chunk] else segment._replace(chunk=NOWHERE)
            position += pages
            count -= pages
            block += 1


class _DataSegments:
    """The segments of one stream by their place among its bytes that are not zero."""

    def __init__(self, segments: Segments) -> None:
        self._chunks = memoryview(segments.chunks).cast("I")
        self._offsets = memoryview(segments.offsets).cast("I")
        lengths = memoryview(segments.lengths).cast("Q")
        is_data = map(ne, self._chunks, repeat(ZERO_CHUNK))
        self._starts = array("Q", accumulate(map(mul, lengths, is_data), initial=0))

    def part(self, begin: int, length: int) -> Iterator[Segment]:
        row = bisect_right(self._starts, begin) - 1  # of zeros and the data behind them, which begin alike, the data
        while length:
            part = min(length, self._starts[row + 1] - begin)
            if part:
                yield Segment(self._chunks[row], self._offsets[row] + begin - self._starts[row], part)
            begin += part
            length -= part
            row += 1


class KnownPages:
    """The fingerprints of the previous generation, in the order in which its streams stored them.

    They are looked up by a table of open addressing: entry numbers from 1, and 0 where a row is free. Each entry stands
    for every n-th page of the index, so that the table is built in a bounded time whatever the index's size.
    """

    def __init__(self, flat: bytes | mmap, places: Places, table_pages: int = TABLE_PAGES) -> None:
        self._flat = flat
        self.places = places
        count = len(flat) // FINGERPRINT_BYTES
        self._stride = max(1, -(-count // table_pages))
        self._halves = memoryview(flat)[: count * FINGERPRINT_BYTES].cast("Q")[:: 2 * self._stride]
        self._mask = (1 << (2 * len(self._halves)).bit_length()) - 1
        self._table = array("I", bytes(4)) * (self._mask + 1)
        self._tabulate()

    def _tabulate(self) -> None:
        table, halves, mask = self._table, self._halves, self._mask
        for entry, half in enumerate(halves, 1):
            row = half & mask
            while (held := table[row]) and halves[held - 1] != half:
                row = (row + 1) & mask
            table[row] = entry

    def same_from(self, position: int, fingerprints: bytes) -> bool:
        """Whether exactly these pages follow at the position."""
        start = position * FINGERPRINT_BYTES
        return self._flat[start : start + len(fingerprints)] == fingerprints

    def find(self, fingerprint: bytes) -> int | None:
        """The position of a page, if it is known."""
        half = int.from_bytes(fingerprint[:8], sys.byteorder)
        row = half & self._mask
        while held := self._table[row]:
            if self._halves[held - 1] == half:
                position = (held - 1) * self._stride
                return position if self.same_from(position, fingerprint) else None
            row = (row + 1) & self._mask
        return None


class PageClassifier:
    """Sorts one stream's pages, batch after batch; it remembers where in the index the stream is."""

    def __init__(self, fingerprints: Fingerprints, known: KnownPages | None) -> None:
        self._fingerprints = fingerprints
        self._known = known
        self._expected = 0

    def classify(self, pages: memoryview) -> tuple[list[Run], bytes]:
        """The runs of a batch, and the fingerprints of those of its pages that are not zero."""
        prints = self._fingerprints.of(pages)
        zero = self._fingerprints.zero
        joined = b"".join(prints)
        if zero not in prints:
            if self._known is None:
                return [Run(NEW, 0, len(prints))], joined
            if self._known.same_from(self._expected, joined):
                self._expected += len(prints)
                return [Run(KNOWN, 0, len(prints), self._expected - len(prints))], joined
            return self._sort(prints), joined
        if prints.count(zero) == len(prints):
            return [Run(ZERO, 0, len(prints))], b""
        return self._sort(prints), b"".join(one for one in prints if one != zero)

    def _sort(self, prints: list[bytes]) -> list[Run]:
        """Page by page. A new page is taken to replace the expected one: pages are changed more often than moved."""
        runs: list[Run] = []
        kind, first, begin, position = -1, 0, 0, self._expected
        for number, fingerprint in enumerate(prints):
            found_kind, found = self._look_up(fingerprint, position)
            if found_kind != kind or (found_kind == KNOWN and found != position):
                if kind >= 0:
                    runs.append(Run(kind, first, number - first, begin))
                kind, first, begin = found_kind, number, found
            position = found + (found_kind != ZERO)
        runs.append(Run(kind, first, len(prints) - first, begin))
        self._expected = position
        return runs

    def _look_up(self, fingerprint: bytes, expected: int) -> tuple[int, int]:
        """The kind of a page, and its position in the index (the expected one if it has none)."""
        if fingerprint == self._fingerprints.zero:
            return ZERO, expected
        if self._known is None:
            return NEW, expected
        if self._known.same_from(expected, fingerprint):
            return KNOWN, expected
        position = self._known.find(fingerprint)
        return (NEW, expected) if position is None else (KNOWN, position)
