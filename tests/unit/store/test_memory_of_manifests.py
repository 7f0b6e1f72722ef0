"""A manifest of anybody's takes no multiple of its size of memory; one of a large workload is read."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.model.errors import IntegrityError, StoreError
from cedana_sched.model.lineage import Abandoned
from cedana_sched.model.manifest import MOST_ABANDONED, MOST_LABELS, MOST_PACKS, Chunks, Segments, StreamEntry
from cedana_sched.store import manifest_format
from cedana_sched.store.decoding import MOST_METADATA_BYTES, MOST_STREAMS
from cedana_sched.store.manifest_format import decode_manifest, decode_summary, encode_manifest
from tests.unit.store.test_any_bytes_in_the_store import Plain
from tests.unit.store.test_manifest_format import MANIFEST, file_of

MIB = 1 << 20
SIZE = 4 * MIB
_HEAD = msgspec.msgpack.encode(MANIFEST.summary)


def many(element: bytes, size: int = SIZE) -> msgspec.Raw:
    """An array in MessagePack that is so long."""
    count = size // len(element)
    return msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + count * element)


def names(size: int = SIZE) -> dict[str, str]:
    """A map in MessagePack that is about so long: a name takes eight bytes."""
    return {f"{number:06x}": "" for number in range(size // 8)}


@contextmanager
def peak(most_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < most_bytes, f"{taken / MIB:,.0f} MiB"


def in_metadata(key: str, value: Any) -> dict[str, Any]:
    return {**Plain, "metadata": Plain["metadata"] | {key: value}}


def in_compatibility(value: Any) -> dict[str, Any]:
    return in_metadata("compatibility", Plain["metadata"]["compatibility"] | {"cpu_features": value})


@pytest.mark.parametrize("body", [
    lambda: in_metadata("runtime", {"a": many(b"\x80")}),
    lambda: in_metadata("runtime", {"a": many(b"\x90")}),
    lambda: in_metadata("runtime", {"a": many(b"\x81\xa0\x00")}),
    lambda: in_metadata("labels", names()),
    lambda: in_metadata("timings", dict.fromkeys(names(), 0)),
    lambda: in_compatibility(list(names())),
    lambda: Plain | {"streams": many(msgspec.msgpack.encode(StreamEntry("", 0, Segments(b"", b"", b""))), 40 * MIB)},
    lambda: Plain | {"streams": [Plain["streams"][0] | {"name": "\N{SNOWMAN}" + "a" * 80 * MIB}]},
    lambda: Plain | {"summary": Plain["summary"] | {"reason": "\N{SNOWMAN}" + "a" * 80 * MIB}},
    lambda: Plain | {"data_key": "\N{SNOWMAN}" + "a" * 80 * MIB},
])  # fmt: skip
def test_what_would_become_many_objects_is_refused_before_it_does(body: Callable[[], dict[str, Any]]) -> None:
    file = file_of(_HEAD, content := msgspec.msgpack.encode(body()))
    with peak(len(content) + 8 * MIB), pytest.raises(IntegrityError, match="the manifest's body has another shape"):
        decode_manifest(file)


@pytest.mark.parametrize("name", ["metadata", "streams", "summary"])
def test_field_that_stands_twice_is_refused_before_it_becomes_objects(name: str) -> None:
    encode = msgspec.msgpack.encode
    lists = {"metadata": in_metadata("runtime", {"a": many(b"\x90", 8 * MIB)})["metadata"]}
    first = lists.get(name) or many(b"\x90", 8 * MIB)
    body = bytes([0x80 | (len(Plain) + 1)]) + encode(name) + encode(first)
    body += b"".join(encode(key) + encode(value) for key, value in Plain.items())
    with peak(len(body) + 8 * MIB), pytest.raises(IntegrityError, match="stands twice"):
        decode_manifest(file_of(_HEAD, body))


@pytest.mark.parametrize("change", [
    lambda: {"labels": names()},
    lambda: {"packs": many(b"\xa2\xc7\x80")},
    lambda: {"abandons": many(b"\x92\x01\x01")},
])  # fmt: skip
def test_header_of_many_objects_is_refused_before_they_are_made(change: Callable[[], dict[str, Any]]) -> None:
    header = msgspec.msgpack.encode(Plain["summary"] | change())
    file = file_of(header, msgspec.msgpack.encode(Plain))
    damaged = pytest.raises(IntegrityError, match="the manifest's header has another shape")
    with peak(2 * len(header) + 4 * MIB), damaged:
        decode_summary(file)


def test_no_object_is_kept_for_each_chunk_that_a_stream_names() -> None:
    rows = 1 << 20
    segments = Segments(array("I", range(rows)).tobytes(), bytes(4 * rows), bytes(8 * rows))
    forged = replace(MANIFEST, streams=(StreamEntry("a", 0, segments),), page_index=None)
    file = encode_manifest(forged)
    with peak(3 * 16 * rows), pytest.raises(IntegrityError, match="names a chunk that is not there"):
        decode_manifest(file)


def large() -> Any:
    """512 GiB in 4,096 processes of 16 threads each, with 10,000 files that are deleted, of 200 containers."""
    count, pages = 512 << 10, 512 << 10
    packs = tuple(f"{'a' * 32}-{number:06d}" for number in range(count // 64))
    ours = MANIFEST.metadata.runtime
    allowed = [f"CAP_{number:017d}" for number in range(41)]
    runtime = ours | {"privileges": {f"container-{number}": 10 * [allowed] for number in range(200)}}
    images = [f"{kind}-{number}.img" for kind in ("mm", "pagemap", "ids", "fs", "fdinfo") for number in range(4096)]
    images += [f"core-{number}.img" for number in range(16 * 4096)]
    images += [f"ghost-file-{number}.img" for number in range(10_000)]
    empty = Segments(bytes(4), bytes(4), (100).to_bytes(8, "little"))
    streams = [StreamEntry(f"a-long-name-of-a-container/{name}", 100, empty) for name in images]
    numbers = array("I", [page % count for page in range(pages)]).tobytes()
    memory = Segments(numbers, bytes(4 * pages), array("Q", [1 << 20] * pages).tobytes())
    streams.append(StreamEntry("a-long-name-of-a-container/pages-1.img", pages << 20, memory))
    chunks = Chunks(
        bytes(32 * count),
        array("I", [number // 64 for number in range(count)]).tobytes(),
        bytes(8 * count),
        bytes(4 * count),
        array("I", [1 << 20] * count).tobytes(),
        bytes(count),
    )
    summary = replace(MANIFEST.summary, packs=packs, abandons=tuple(Abandoned(one, 1.0) for one in range(2_000)))
    metadata = replace(MANIFEST.metadata, runtime=runtime)
    return replace(MANIFEST, summary=summary, metadata=metadata, streams=tuple(streams), chunks=chunks, page_index=None)


def test_manifest_of_a_large_workload_is_read() -> None:
    written = large()
    assert decode_manifest(encode_manifest(written)) == written


def test_as_much_as_there_may_be_is_read_and_nothing_is_committed_that_is_more() -> None:
    few = {f"{number}": "" for number in range(MOST_LABELS)}
    summary = replace(MANIFEST.summary, labels=few, abandons=(Abandoned(1, 1.0),) * MOST_ABANDONED)
    full = replace(MANIFEST, summary=summary)
    assert decode_manifest(encode_manifest(full)) == full
    stream = MANIFEST.streams[1]
    for more in (
        replace(MANIFEST, metadata=replace(MANIFEST.metadata, runtime={"a": "a" * MOST_METADATA_BYTES})),
        replace(MANIFEST, streams=(stream,) * (MOST_STREAMS + 1)),
        replace(MANIFEST, summary=replace(summary, packs=("a" * 50,) * MOST_PACKS)),
        replace(MANIFEST, summary=replace(summary, packs=("a",) * (MOST_PACKS + 1))),
        replace(MANIFEST, summary=replace(summary, labels=few | {"more": ""})),
        replace(MANIFEST, summary=replace(summary, abandons=(Abandoned(1, 1.0),) * (MOST_ABANDONED + 1))),
    ):
        with pytest.raises(StoreError, match="the snapshot would have an unreadable manifest"):
            encode_manifest(more)


def test_manifest_longer_than_any_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_format, "MOST_BODY_BYTES", 100)
    with pytest.raises(StoreError, match="says that it is"):
        encode_manifest(MANIFEST)
