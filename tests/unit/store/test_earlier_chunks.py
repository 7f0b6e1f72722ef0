"""What a dump looks up of the generation before it costs no object for each chunk, and loses none."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

from msgspec.structs import replace

from cedana_sched.model.identity import Identity
from cedana_sched.model.manifest import Chunks
from cedana_sched.store.page_classification import KnownPages, PageSegmentLookup
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.previous_generation import PreviousGeneration
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.snapshots import take
from tests.unit.store.test_restore_memory import scattered

WORKLOAD = Identity("team-a", "gromacs")


def test_whole_chunks_that_were_stored_before_are_named_again(tmp_path: Path) -> None:
    """Small streams have no pages that could be recognised: only the digest of their chunk tells."""
    store = SnapshotStore(PosixBackend(tmp_path))
    streams = {"pages-1.img": random.Random(1).randbytes(1 << 20), "core.img": b"the same"}
    first = take(store, WORKLOAD, streams)

    second = take(store, WORKLOAD, streams)

    assert second.summary.stats.new_bytes == 0
    assert second.summary.packs == first.summary.packs


def test_chunks_that_must_not_be_named_again_are_not_found() -> None:
    manifest = scattered(2 * 256)
    digests = bytes(range(64))
    named = replace(
        manifest,
        summary=replace(manifest.summary, packs=("w-000000",)),
        chunks=replace(manifest.chunks, digests=digests),
    )
    previous = PreviousGeneration(named, KnownPages(b"", PageSegmentLookup([], (), [])), [True, False])

    found = previous.find_reusable_chunk(digests[:32])
    assert found is not None
    assert (found.pack, found.chunk.digest) == ("w-000000", digests[:32])
    assert previous.find_reusable_chunk(digests[32:]) is None
    assert previous.find_reusable_chunk(digests[:8] + bytes(24)) is None, "another chunk that begins alike"


def test_the_chunks_of_a_large_generation_take_few_bytes_each() -> None:
    count = 1 << 15
    manifest = scattered(256)
    digests = random.Random(1).randbytes(32 * count)
    columns = Chunks(digests, bytes(4 * count), bytes(8 * count), bytes(4 * count), bytes(4 * count), bytes(count))
    large = replace(manifest, streams=(), chunks=columns)
    pages = KnownPages(b"", PageSegmentLookup([], (), []))
    reusable = [True] * count
    tracemalloc.start()
    try:
        previous = PreviousGeneration(large, pages, reusable)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * count
    assert len(previous._numbers) == count
