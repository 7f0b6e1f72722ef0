"""What goes into a store comes out of it, on every kind of store."""

from __future__ import annotations

import random
from pathlib import Path

from cedana_sched.model.identity import Identity
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import metadata, take

WORKLOAD = Identity("team-a", "gromacs")


def memory(seed: int, pages: int, *, zero_every: int = 3) -> bytearray:
    source = random.Random(seed)
    return bytearray(b"".join(bytes(4096) if n % zero_every == 0 else source.randbytes(4096) for n in range(pages)))


def test_streams_come_back_byte_for_byte(storage: StorageConfig, tmp_path: Path) -> None:
    streams = {
        "pages-1.img": bytes(memory(1, 2000)) + b"tail",
        "core-1.img": b"x" * 700,
        "empty.img": b"",
        "zeros.img": bytes(300_000),
        "edge.img": random.Random(2).randbytes(64 << 10),
        "over-the-edge.img": random.Random(3).randbytes((64 << 10) + 1),
        "side/core-1.img": b"y" * 700,
        "side/pages-1.img": random.Random(4).randbytes(70_000),
        "volumes/scratch.tar": b"z",
    }
    store = SnapshotStore.open(storage, pack_bytes=2 << 20)

    manifest = take(store, WORKLOAD, streams)

    reader = store.open_snapshot(manifest.ref)
    reader.stage(tmp_path)
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert {str(path.relative_to(tmp_path)): path.read_bytes() for path in files} == streams
    assert reader.read("core-1.img") == streams["core-1.img"]
    assert reader.manifest.metadata == metadata(manifest.metadata.checkpoint_uid)
    assert len(manifest.summary.packs) > 1


def test_the_second_generation_sends_only_the_changed_pages(storage: StorageConfig, tmp_path: Path) -> None:
    pages = memory(1, 6000, zero_every=50)
    store = SnapshotStore.open(storage)
    take(store, WORKLOAD, {"pages-1.img": bytes(pages)})
    changed = random.Random(7).sample(range(6000), 300)
    for page in changed:
        pages[page * 4096 : page * 4096 + 8] = b"changed!"

    second = take(store, WORKLOAD, {"pages-1.img": bytes(pages)})

    assert second.summary.stats.new_bytes == 300 * 4096
    assert second.ref.generation == 2
    store.open_snapshot(second.ref).stage(tmp_path)
    assert (tmp_path / "pages-1.img").read_bytes() == pages
