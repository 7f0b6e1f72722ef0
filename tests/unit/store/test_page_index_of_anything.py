"""A page index of an unsealed store, whatever it says, is refused where it is read, or each of its pages is there."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import IncompatibleError, IntegrityError
from cedana_sched.model.manifest import ZERO_CHUNK, Chunks, Manifest, PageIndex, Segments, StreamEntry
from cedana_sched.store.manifest_format import decode_manifest, encode_manifest
from cedana_sched.store.page_classification import (
    FINGERPRINT_BYTES,
    PAGE_BYTES,
    Fingerprinter,
    KnownPages,
    PageClassifier,
    PageSegmentLookup,
)
from cedana_sched.store.previous_generation import reusable_chunks
from tests.unit.store.test_any_bytes_in_the_store import VALUES, places, replaced
from tests.unit.store.test_manifest_format import MANIFEST, file_of


def u32(*numbers: int) -> bytes:
    return array("I", numbers).tobytes()


def u64(*numbers: int) -> bytes:
    return array("Q", numbers).tobytes()


def stream(name: str, *rows: tuple[int, int, int]) -> StreamEntry:
    chunks, offsets, lengths = zip(*rows, strict=True)
    return StreamEntry(name, sum(lengths), Segments(u32(*chunks), u32(*offsets), u64(*lengths)))


CHUNKS = Chunks(b"d" * 64, u32(0, 0), u64(0, 9), u32(9, 9), u32(2 * PAGE_BYTES, 5 * PAGE_BYTES), b"\0\0")
GOOD = msgspec.structs.replace(
    MANIFEST,
    chunks=CHUNKS,
    streams=(
        stream("a", (0, 0, 2 * PAGE_BYTES), (ZERO_CHUNK, 0, PAGE_BYTES), (1, 0, PAGE_BYTES)),
        stream("b", (1, PAGE_BYTES, 4 * PAGE_BYTES)),
    ),
    page_index=PageIndex(7 * FINGERPRINT_BYTES, b"x" * 32, u32(0, 2, 1, 4, 0, 1)),
)
PLAIN: dict[str, Any] = msgspec.to_builtins(GOOD, builtin_types=(bytes,))
PLACES = [one for one in places(PLAIN) if one and one[0] in {"page_index", "streams", "chunks", "seed"}]
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 9, 0xFFFF_FFFF])
COLUMNS = (
    st.lists(NUMBERS, max_size=8).map(lambda numbers: u32(*numbers))
    | st.lists(NUMBERS, max_size=4).map(lambda numbers: u64(*(number * PAGE_BYTES for number in numbers)))
    | VALUES
)


def use(manifest: Manifest) -> None:
    """All that the next generation asks of it."""
    index = manifest.page_index
    prints = Fingerprinter(manifest.seed)
    if index is None:
        return
    blocks = memoryview(index.blocks).cast("I")
    where = PageSegmentLookup([one.segments for one in manifest.streams], blocks, reusable_chunks(manifest, set()))
    pages = index.length // FINGERPRINT_BYTES
    if pages > 100:
        return  # as many fingerprints would have to be in the store
    for position in range(pages):
        for count in (1, pages - position):
            assert sum(segment.length for segment in where.segments_of(position, count)) == count * PAGE_BYTES
    PageClassifier(prints, KnownPages(b"\1" * index.length, where)).classify(memoryview(bytes(3 * PAGE_BYTES)))


@given(st.lists(st.tuples(st.sampled_from(PLACES), COLUMNS), min_size=1, max_size=2))
@settings(deadline=None, max_examples=600)
def test_an_index_with_anything_in_it(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    changed = PLAIN
    for place, by in changes:
        changed = replaced(changed, place, by) if place in places(changed) else changed
    file = file_of(msgspec.msgpack.encode(changed["summary"]), msgspec.msgpack.encode(changed))
    try:
        manifest = decode_manifest(file)
    except (IntegrityError, IncompatibleError):
        return
    use(manifest)


def with_blocks(*blocks: int) -> bytes:
    """With an index that is as long as these say."""
    index = PageIndex(sum(blocks[1::2]) * FINGERPRINT_BYTES, b"x" * 32, u32(*blocks))
    return encode_manifest(msgspec.structs.replace(GOOD, page_index=index))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=6))
@settings(deadline=None, max_examples=300)
def test_an_index_of_any_blocks(blocks: list[tuple[int, int]]) -> None:
    try:
        manifest = decode_manifest(with_blocks(*(number for block in blocks for number in block)))
    except IntegrityError:
        return
    use(manifest)


@pytest.mark.parametrize("blocks", [(1, 7), (0, 2, 1, 5), (0, 3, 1, 4, 0, 1)])
def test_an_index_of_more_pages_than_a_stream_has_is_refused(blocks: tuple[int, ...]) -> None:
    with pytest.raises(IntegrityError, match="more pages"):
        decode_manifest(with_blocks(*blocks))


def test_an_index_of_all_pages_that_a_stream_has_is_read() -> None:
    use(decode_manifest(with_blocks(1, 1, 0, 3, 1, 3)))


def test_the_good_index_of_these_tests_is_used() -> None:
    manifest = decode_manifest(encode_manifest(GOOD))
    assert manifest == GOOD
    use(manifest)
