"""Pages are sorted into zero, known and new, and every known one is where it is said to be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.model.manifest import Segment
from cedana_sched.store.pages import (
    KNOWN,
    NEW,
    NOWHERE,
    PAGE_BYTES,
    ZERO,
    Fingerprints,
    KnownPages,
    PageClassifier,
)

PRINTS = Fingerprints(42)


def page(number: int) -> bytes:
    """Page 0 is zero; every other number is another page."""
    return number.to_bytes(4, "little") * (PAGE_BYTES // 4)


def known(numbers: list[int], *, table_pages: int = 1 << 19, per_chunk: int = 7) -> KnownPages:
    """An index of these pages, stored tight in chunks of so many pages; chunk numbers begin at 100."""
    flat = b"".join(PRINTS.of(memoryview(page(number)))[0] for number in numbers)
    places = [
        Segment(100 + first // per_chunk, 0, min(per_chunk, len(numbers) - first) * PAGE_BYTES)
        for first in range(0, len(numbers), per_chunk)
    ]
    return KnownPages(flat, places, table_pages)


def sort_all(numbers: list[int], pages: KnownPages | None, batch: int) -> list[tuple[int, int | None]]:
    """For each page its kind, and for a known one the page number that its place stands for."""
    classifier = PageClassifier(PRINTS, pages)
    result: list[tuple[int, int | None]] = []
    for first in range(0, len(numbers), batch):
        data = memoryview(b"".join(page(number) for number in numbers[first : first + batch]))
        runs, prints = classifier.classify(data)
        assert [run.first for run in runs] == [sum(r.pages for r in runs[:n]) for n in range(len(runs))]
        assert prints == b"".join(one for one in PRINTS.of(data) if one != PRINTS.zero)
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
        for place in pages.places(first, wanted)
        for n in range(place.length // PAGE_BYTES)
    ]

    assert found == [(100 + at // 7, at % 7) for at in range(first, first + wanted)]


def test_another_seed_gives_other_fingerprints() -> None:
    assert Fingerprints(1).of(memoryview(page(9))) != Fingerprints(2).of(memoryview(page(9)))


@pytest.mark.parametrize("kind", [ZERO, NEW])
def test_without_an_earlier_generation_nothing_is_known(kind: int) -> None:
    assert sort_all([0 if kind == ZERO else 5] * 3, None, 2) == [(kind, None)] * 3


def test_pages_that_must_not_be_reused_are_marked() -> None:
    pages = KnownPages(PRINTS.of(memoryview(page(1)))[0], [Segment(NOWHERE, 0, PAGE_BYTES)])

    assert [place.chunk for place in pages.places(0, 1)] == [NOWHERE]
