"""A restore's plan is columns: what it keeps of a scattered snapshot is a fraction of a percent of it."""

from __future__ import annotations

import threading
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import ZERO_CHUNK, Chunks, Manifest, Segments, StreamEntry
from cedana_sched.store.reader import THREADS, ChunkReader, ReadRequest, _SegmentPlacement, read_in_parallel
from tests.servers.counting import CountingBackend
from tests.unit.store.test_garbage_races import manifest_of

PAGE = 4096
CHUNK_PAGES = 256


def scattered(segments: int) -> Manifest:
    """Every page of a stream in another chunk than the page before."""
    chunks = segments // CHUNK_PAGES
    entry = StreamEntry(
        "pages-1.img",
        segments * PAGE,
        Segments(
            array("I", [number % chunks for number in range(segments)]).tobytes(),
            array("I", [number // chunks * PAGE for number in range(segments)]).tobytes(),
            array("Q", [PAGE] * segments).tobytes(),
        ),
    )
    size = CHUNK_PAGES * PAGE
    table = Chunks(
        digests=bytes(32 * chunks),
        packs=array("I", [number // 64 for number in range(chunks)]).tobytes(),
        offsets=array("Q", [number % 64 * size for number in range(chunks)]).tobytes(),
        stored=array("I", [size] * chunks).tobytes(),
        sizes=array("I", [size] * chunks).tobytes(),
        codecs=bytes(chunks),
    )
    empty = manifest_of(SnapshotRef(Identity("team-a", "job"), 1), "w", (), 0.0)
    return Manifest(summary=empty.summary, metadata=empty.metadata, streams=(entry,), chunks=table, seed=1)


def test_the_plan_of_a_scattered_snapshot_takes_a_few_bytes_for_each_segment(tmp_path: Path) -> None:
    segments = 1 << 16
    manifest = scattered(segments)
    backend = CountingBackend(tmp_path)
    tracemalloc.start()
    try:
        placement = _SegmentPlacement(manifest, tmp_path)
        requests = sum(1 for _ in ChunkReader(backend, manifest).plan_reads(placement.placed_chunks))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert requests == segments // CHUNK_PAGES // 4
    assert peak < 20 * segments


def test_requests_are_made_as_they_are_needed_and_each_once() -> None:
    taken, done = 0, []
    lock = threading.Lock()
    ahead: list[int] = []

    def reads() -> Iterator[ReadRequest]:
        nonlocal taken
        for number in range(500):
            taken += 1
            yield ReadRequest(0, number, 1, (number,))

    def act(read: ReadRequest) -> None:
        with lock:
            done.append(read.offset)
            ahead.append(taken - len(done))

    read_in_parallel(act, reads())

    assert sorted(done) == list(range(500))
    assert max(ahead) <= 2 * THREADS + 1


def test_the_first_failure_stops_the_rest() -> None:
    done: list[int] = []

    def act(read: ReadRequest) -> None:
        if read.offset == 3:
            raise ValueError("the fourth")
        done.append(read.offset)

    with pytest.raises(ValueError, match="the fourth"):
        read_in_parallel(act, (ReadRequest(0, number, 1, (number,)) for number in range(10_000)))
    assert len(done) < 10_000


def test_zeros_and_several_streams_of_one_chunk_are_written_where_they_belong(tmp_path: Path) -> None:
    streams = (
        StreamEntry("empty.img", 0, Segments(b"", b"", b"")),
        StreamEntry(
            "a.img",
            9,
            Segments(
                *(
                    array(kind, row).tobytes()
                    for kind, row in zip("IIQ", ([ZERO_CHUNK, 0, 1], [0, 2, 0], [4, 3, 2]), strict=True)
                )
            ),
        ),
        StreamEntry(
            "b.img",
            4,
            Segments(*(array(kind, row).tobytes() for kind, row in zip("IIQ", ([0, 0], [0, 3], [2, 2]), strict=True))),
        ),
    )
    empty = scattered(2 * CHUNK_PAGES)
    manifest = Manifest(summary=empty.summary, metadata=empty.metadata, streams=streams, chunks=empty.chunks, seed=1)
    placement = _SegmentPlacement(manifest, tmp_path)
    placement.create_files()

    assert list(placement.placed_chunks) == [0, 1]
    placement.write(1, b"XY")
    placement.write(0, b"01234567")

    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert content == {"empty.img": b"", "a.img": b"\0\0\0\x00234XY", "b.img": b"0134"}
