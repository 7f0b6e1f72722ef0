"""Pages are sorted into zero, known and new, and every known one is where it is said to be."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from mmap import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.model.manifest import ZERO_CHUNK, Segment, Segments
from cedana_sched.store.page_classification import (
    FINGERPRINT_BYTES,
    KNOWN,
    NEW,
    NOWHERE,
    PAGE_BYTES,
    ZERO,
    Fingerprinter,
    KnownPages,
    PageClassifier,
    PageSegmentLookup,
)

PRINTS = Fingerprinter(42)


def page(number: int) -> bytes:
    """Page 0 is zero; every other number is another page."""
    return number.to_bytes(4, "little") * (PAGE_BYTES // 4)


def known(numbers: list[int], *, table_pages: int = 1 << 19, per_chunk: int = 7) -> KnownPages:
    """An index of these pages, stored tight in chunks of so many pages; chunk numbers begin at 100."""
    flat = b"".join(PRINTS.fingerprint_pages(memoryview(page(number)))[0] for number in numbers)
    rows = [
        Segment(100 + first // per_chunk, 0, min(per_chunk, len(numbers) - first) * PAGE_BYTES)
        for first in range(0, len(numbers), per_chunk)
    ]
    return KnownPages(flat, places_of([rows], (0, len(numbers))), table_pages)


def places_of(
    streams: list[list[Segment]], blocks: tuple[int, ...], unusable: tuple[int, ...] = ()
) -> PageSegmentLookup:
    """Places of these segments, but for chunks that are not to be used again."""
    columns = [
        Segments(
            array("I", [row.chunk for row in rows]).tobytes(),
            array("I", [row.offset for row in rows]).tobytes(),
            array("Q", [row.length for row in rows]).tobytes(),
        )
        for rows in streams
    ]
    return PageSegmentLookup(columns, blocks, [number not in unusable for number in range(10_000)])


def sort_all(numbers: list[int], pages: KnownPages | None, batch: int) -> list[tuple[int, int | None]]:
    """For each page its kind, and for a known one the page number that its place stands for."""
    classifier = PageClassifier(PRINTS, pages)
    result: list[tuple[int, int | None]] = []
    for first in range(0, len(numbers), batch):
        data = memoryview(b"".join(page(number) for number in numbers[first : first + batch]))
        runs, prints = classifier.classify(data)
        assert [run.first for run in runs] == [sum(r.pages for r in runs[:n]) for n in range(len(runs))]
        assert prints == b"".join(one for one in PRINTS.fingerprint_pages(data) if one != PRINTS.zero)
        for run in runs:
            result += [(run.kind, run.position + n if run.kind == KNOWN else None) for n in range(run.pages)]
    assert len(result) == len(numbers)
    return result


numbers = st.lists(st.integers(0, 30), max_size=60)


@given(old=st.lists(st.integers(1, 30), max_size=60), new=numbers, batch=st.integers(1, 17))
@settings(max_examples=300, deadline=None)
def test_every_page_is_sorted_as_looking_it_up_would(old: list[int], new: list[int], batch: int) -> None:
    sorted_pages = sort_all(new, known(old), batch)

    for number, (kind, position) in zip(new, sorted_pages, strict=True):
        assert kind == (ZERO if number == 0 else KNOWN if number in old else NEW)
        assert position is None or old[position] == number


@given(old=st.lists(st.integers(1, 1000), min_size=1, max_size=200, unique=True), new=numbers)
@settings(max_examples=100, deadline=None)
def test_a_sampled_table_never_claims_a_page_wrongly(old: list[int], new: list[int]) -> None:
    for number, (kind, position) in zip(new, sort_all(new, known(old, table_pages=10), 8), strict=True):
        assert (kind == ZERO) == (number == 0)
        assert position is None or old[position] == number


def test_a_sampled_table_finds_back_into_a_shifted_run() -> None:
    old = list(range(1, 2001))
    new = [5001, 5002, 5003, *old]

    kinds = [kind for kind, _ in sort_all(new, known(old, table_pages=200), 256)]

    assert kinds.count(KNOWN) > 1900


def test_scattered_changes_leave_the_rest_known() -> None:
    old = list(range(1, 4001))
    new = list(old)
    for position in random.Random(3).sample(range(4000), 200):
        new[position] += 10_000

    kinds = [kind for kind, _ in sort_all(new, known(old, table_pages=100), 256)]

    assert (kinds.count(NEW), kinds.count(KNOWN)) == (200, 3800)


@given(count=st.integers(1, 40), data=st.data())
@settings(deadline=None)
def test_places_cover_exactly_the_pages_asked_for(count: int, data: st.DataObject) -> None:
    pages = known(list(range(1, count + 1)), per_chunk=7)
    first = data.draw(st.integers(0, count - 1))
    wanted = data.draw(st.integers(1, count - first))

    found = [
        (place.chunk, place.offset // PAGE_BYTES + n)
        for place in pages.places.segments_of(first, wanted)
        for n in range(place.length // PAGE_BYTES)
    ]

    assert found == [(100 + at // 7, at % 7) for at in range(first, first + wanted)]


def test_another_seed_gives_other_fingerprints() -> None:
    assert Fingerprinter(1).fingerprint_pages(memoryview(page(9))) != Fingerprinter(2).fingerprint_pages(
        memoryview(page(9))
    )


@pytest.mark.parametrize("kind", [ZERO, NEW])
def test_without_an_earlier_generation_nothing_is_known(kind: int) -> None:
    assert sort_all([0 if kind == ZERO else 5] * 3, None, 2) == [(kind, None)] * 3


def test_pages_that_must_not_be_reused_are_marked() -> None:
    pages = places_of([[Segment(7, 0, PAGE_BYTES), Segment(8, 0, PAGE_BYTES)]], (0, 2), unusable=(7,))

    assert [place.chunk for place in pages.segments_of(0, 2)] == [NOWHERE, 8]


def naive_places(streams: list[list[Segment]], blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Chunk and offset of every page of the index, one by one."""
    pages = [
        iter(
            [
                (row.chunk, row.offset + at)
                for row in rows
                if row.chunk != ZERO_CHUNK
                for at in range(0, row.length, PAGE_BYTES)
            ]
        )
        for rows in streams
    ]
    return [next(pages[stream]) for stream, count in blocks for _ in range(count)]


segment_rows = st.lists(
    st.tuples(st.one_of(st.just(ZERO_CHUNK), st.integers(0, 99)), st.integers(0, 5), st.integers(1, 6)), max_size=12
)


@given(streams=st.lists(segment_rows, min_size=1, max_size=3), data=st.data())
@settings(max_examples=200, deadline=None)
def test_places_of_interleaved_streams_with_zeros_are_those_of_the_pages_one_by_one(
    streams: list[list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    rows = [[Segment(c, o * PAGE_BYTES, n * PAGE_BYTES) for c, o, n in stream] for stream in streams]
    left = [sum(n for c, _, n in stream if c != ZERO_CHUNK) for stream in streams]
    blocks: list[tuple[int, int]] = []
    while any(left):
        stream = data.draw(st.sampled_from([number for number, pages in enumerate(left) if pages]))
        blocks.append((stream, data.draw(st.integers(1, left[stream]))))
        left[stream] -= blocks[-1][1]
    want = naive_places(rows, blocks)
    first = data.draw(st.integers(0, len(want)))
    count = data.draw(st.integers(0, len(want) - first))

    places = places_of(rows, tuple(number for block in blocks for number in block))
    found = [
        (place.chunk, place.offset + at)
        for place in places.segments_of(first, count)
        for at in range(0, place.length, PAGE_BYTES)
    ]

    assert found == want[first : first + count]


def test_an_index_of_one_page_over_and_over_is_tabulated_at_once() -> None:
    """Every page the same would fill one chain of the table, and building it would take quadratic time."""
    pages = known([5] * 20_000)

    assert sum(1 for entry in pages._table if entry) == 1


def test_looking_pages_up_takes_a_bounded_memory_and_no_objects_for_each_page() -> None:
    """64 GiB of memory: what is built of its index while the workload is frozen."""
    count = 16 << 20
    flat = mmap(-1, count * FINGERPRINT_BYTES)
    places = places_of([[Segment(0, 0, count * PAGE_BYTES)]], (0, count))
    tracemalloc.start()
    try:
        pages = KnownPages(flat, places, table_pages=1 << 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * (1 << 16)
    del pages


def test_the_places_of_scattered_pages_take_eight_bytes_each() -> None:
    count = 1 << 16
    numbers = array("I", range(count))
    columns = Segments(numbers.tobytes(), bytes(4 * count), array("Q", [PAGE_BYTES] * count).tobytes())
    reusable = [True] * count
    tracemalloc.start()
    try:
        places = PageSegmentLookup([columns], (0, count), reusable)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * count
    assert kept < 12 * count
    assert next(places.segments_of(count - 1, 1)).chunk == count - 1
