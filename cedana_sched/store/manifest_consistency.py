"""Consistency of a manifest's tables, checked once when it is read, so that no later code has to.

Any client may have written an unsealed store. Inconsistent tables are damage, reported in words, and no name that leads
outside of the store passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from operator import mul, ne

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.manifest import ZERO_CHUNK, Chunks, Manifest, PageIndex, StreamEntry
from cedana_sched.store.chunk_pipeline import CHUNK_BYTES
from cedana_sched.store.page_classification import FINGERPRINT_BYTES, PAGE_BYTES
from cedana_sched.store.sealing.aead import NONCE_BYTES, TAG_BYTES
from cedana_sched.store.stream_writer import is_stream_name

_MOST_STORED_BYTES = CHUNK_BYTES + NONCE_BYTES + TAG_BYTES
"""Bound of a chunk: uncompressed, and sealed. Eight are read at a time."""
_MOST_PACK_BYTES = 1 << 50
"""System calls take at most 63 bits."""
_SHOWN = 60


def require_consistent(manifest: Manifest) -> None:
    """Raise if the manifest is inconsistent.

    Raises:
        IntegrityError: naming the problem.
    """
    for problem in _manifest_problems(manifest):
        raise IntegrityError(f"the manifest's body cannot be: {problem}")


def _manifest_problems(manifest: Manifest) -> Iterator[str]:
    yield from _chunk_problems(manifest.chunks, len(manifest.summary.packs))
    names = [stream.name for stream in manifest.streams]
    if strange := [name for name in names if not is_stream_name(name)]:
        yield f"stream {strange[0][:_SHOWN]!r} cannot be the name of a stream"
    if len(set(names)) != len(names):
        yield "two streams have one name"
    for stream in manifest.streams:
        yield from _stream_problems(stream, len(manifest.chunks))
    if manifest.page_index is not None:
        yield from _page_index_problems(manifest.page_index, manifest.streams)


def _chunk_problems(chunks: Chunks, packs: int) -> Iterator[str]:
    count = len(chunks)
    widths = {32: chunks.digests, 8: chunks.offsets}
    fours = (chunks.packs, chunks.stored, chunks.sizes)
    if any(len(column) != width * count for width, column in widths.items()) or any(
        len(column) != 4 * count for column in fours
    ):
        yield "the columns of the chunks are not of one length"
        return
    if count and max(memoryview(chunks.packs).cast("I")) >= packs:
        yield "a chunk is in a pack that is not named"
    if count and (
        max(memoryview(chunks.sizes).cast("I")) > CHUNK_BYTES
        or max(memoryview(chunks.stored).cast("I")) > _MOST_STORED_BYTES
    ):
        yield "a chunk is larger than any"
    if count and max(memoryview(chunks.offsets).cast("Q")) > _MOST_PACK_BYTES:
        yield "a chunk lies further behind than any pack ends"


def _stream_problems(stream: StreamEntry, chunks: int) -> Iterator[str]:
    segments, name = stream.segments, stream.name[:_SHOWN]
    rows = len(segments)
    if (len(segments.chunks), len(segments.offsets), len(segments.lengths)) != (4 * rows, 4 * rows, 8 * rows):
        yield f"the columns of stream {name!r} are not of one length"
        return
    used = filter(partial(ne, ZERO_CHUNK), memoryview(segments.chunks).cast("I"))  # creates no object per chunk
    if max(used, default=-1) >= chunks:
        yield f"stream {name!r} names a chunk that is not there"
    if sum(memoryview(segments.lengths).cast("Q")) != stream.size_bytes:
        yield f"the segments of stream {name!r} are not as long as it is"


def _page_index_problems(index: PageIndex, streams: tuple[StreamEntry, ...]) -> Iterator[str]:
    if len(index.blocks) % 8:
        yield "the blocks of the page index are no pairs"
        return
    blocks = memoryview(index.blocks).cast("I")
    if any(stream >= len(streams) for stream in blocks[::2]):
        yield "the page index is of a stream that is not there"
        return
    if sum(blocks[1::2]) * FINGERPRINT_BYTES != index.length:
        yield "the page index is not as long as its blocks say"
    pages = dict.fromkeys(blocks[::2], 0)
    for stream, count in zip(blocks[::2], blocks[1::2], strict=True):
        pages[stream] += count
    for stream, count in pages.items():
        if count * PAGE_BYTES > _data_bytes(streams[stream]):
            yield f"the page index has more pages of stream {streams[stream].name[:_SHOWN]!r} than there are"


def _data_bytes(stream: StreamEntry) -> int:
    """Return the number of non-zero bytes."""
    chunks, lengths = memoryview(stream.segments.chunks).cast("I"), memoryview(stream.segments.lengths).cast("Q")
    return sum(map(mul, lengths, map(ne, chunks, repeat(ZERO_CHUNK))))
