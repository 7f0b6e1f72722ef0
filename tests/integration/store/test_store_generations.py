"""Generation after generation: only what changed is sent, reading stays cheap, memory stays bounded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest
from cedana_sched.store.intents import TIME_TO_LIVE_SECONDS
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import metadata, take

WORKLOAD = Identity("team-a", "gromacs")
PAGE = 4096


def change(memory: bytearray, pages: list[int], seed: int) -> None:
    source = random.Random(seed)
    for page in pages:
        memory[page * PAGE : (page + 1) * PAGE] = source.randbytes(PAGE)


def read_amplification(manifest: Manifest) -> float:
    """Bytes of chunks that a restore reads, over the bytes that it needs of them."""
    needed = sum(one.length for stream in manifest.streams for one in stream.segments if one.chunk != ZERO_CHUNK)
    return sum(memoryview(manifest.chunks.sizes).cast("I")) / needed


def test_ten_generations_of_a_changing_process_come_back_and_stay_cheap_to_read(tmp_path: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path / "store"), pack_bytes=4 << 20)
    memory = bytearray(random.Random(0).randbytes(3000 * PAGE))
    source = random.Random(5)
    sent = []
    for generation in range(10):
        manifest = take(store, WORKLOAD, {"pages-1.img": bytes(memory), "core.img": b"%d" % generation})
        sent.append(manifest.summary.stats.new_bytes)
        assert read_amplification(manifest) <= 2.0
        target = tmp_path / str(generation)
        target.mkdir()
        store.open_snapshot(manifest.ref).stage(target)
        assert (target / "pages-1.img").read_bytes() == memory
        change(memory, source.sample(range(3000), 600), generation)

    assert sum(sent[1:]) / 9 < 0.5 * sent[0]
    for summary in store.list():
        assert store.verify(summary.ref).ok


def test_pages_that_moved_are_recognised(tmp_path: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path))
    memory = random.Random(0).randbytes(3000 * PAGE)
    take(store, WORKLOAD, {"pages-1.img": memory})

    moved = random.Random(1).randbytes(7 * PAGE) + memory[1000 * PAGE :] + memory[: 1000 * PAGE]
    second = take(store, WORKLOAD, {"pages-2.img": moved})

    assert second.summary.stats.new_bytes == 7 * PAGE


def test_the_node_remembers_the_pages_of_the_newest_generation(storage: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(storage, cache_directory=tmp_path / "cache")
    memory = random.Random(0).randbytes(500 * PAGE)
    for expected in (500, 0, 0):
        manifest = take(store, WORKLOAD, {"pages-1.img": memory})
        assert manifest.summary.stats.new_bytes == expected * PAGE
        assert manifest.summary.page_index is not None
        open_backend(storage).delete([manifest.summary.page_index])

    (remembered,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    remembered.write_bytes(b"damaged")
    assert take(store, WORKLOAD, {"pages-1.img": memory}).summary.stats.new_bytes == 500 * PAGE


@given(
    sizes=st.lists(st.integers(0, 150_000), max_size=12), seed=st.integers(0, 5), zeros=st.floats(0, 1), data=st.data()
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_writes_of_any_length_come_back(
    sizes: list[int], seed: int, zeros: float, data: st.DataObject, tmp_path: Path
) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path))
    source = random.Random(seed)
    memory = b"".join(
        bytes(PAGE) if source.random() < zeros else source.randbytes(PAGE) for _ in range(sum(sizes) // PAGE + 1)
    )[: sum(sizes)]
    identity = Identity("any", f"job-{data.draw(st.integers(0, 2))}")
    uid = f"{source.random()}-{len(store.list())}"
    with store.begin(identity, checkpoint_uid=uid) as writer:
        with writer.open_stream("pages-1.img") as stream:
            at = 0
            for size in sizes:
                stream.write(memoryview(memory)[at : at + size])
                at += size
        manifest = writer.commit(metadata(uid))

    assert store.open_snapshot(manifest.ref).read("pages-1.img") == memory
    stats = manifest.summary.stats
    assert stats.read_bytes == len(memory) == stats.zero_bytes + stats.reused_bytes + stats.new_bytes


def test_streams_side_by_side(storage: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(storage, pack_bytes=4 << 20)
    streams = {f"pages-{n}.img": random.Random(n).randbytes(n * 200_000) for n in range(12)}
    with store.begin(WORKLOAD, checkpoint_uid="uid") as writer:

        def feed(name: str) -> None:
            with writer.open_stream(name) as stream:
                for at in range(0, len(streams[name]), 70_000):
                    stream.write(streams[name][at : at + 70_000])

        threads = [threading.Thread(target=feed, args=(name,)) for name in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.progress.read_bytes == sum(map(len, streams.values()))
        manifest = writer.commit(metadata("uid"))

    seen: list[tuple[int, int]] = []
    store.open_snapshot(manifest.ref).stage(tmp_path, lambda done, total: seen.append((done, total)))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == streams
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_zeros_take_no_room_in_the_store_or_on_the_node(tmp_path: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path / "store"))
    with store.begin(WORKLOAD, checkpoint_uid="uid") as writer:
        with writer.open_stream("pages-1.img") as stream:
            for _ in range(256):
                stream.write(bytes(1 << 20))
        manifest = writer.commit(metadata("uid"))
    (tmp_path / "staged").mkdir()
    store.open_snapshot(manifest.ref).stage(tmp_path / "staged")

    status = (tmp_path / "staged" / "pages-1.img").stat()
    assert (status.st_size, status.st_blocks) == (256 << 20, 0)
    assert manifest.summary.stats.zero_bytes == 256 << 20
    assert sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()) < 10_000


BIG = """
import json, resource, sys
from cedana_sched.model.identity import Identity
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.snapshots import metadata
store = SnapshotStore.open(StorageConfig.load(json.load(sys.stdin)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
page = bytearray(b"particle " * 456)[:4096]
with store.begin(Identity("team-a", "big"), checkpoint_uid="uid") as writer:
    with writer.open_stream("pages-1.img") as stream:
        for block in range(512):
            stream.write(b"".join(b"%08d" % (block * 256 + n) + page[8:] for n in range(256)))
    writer.commit(metadata("uid"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_bounded(storage: StorageConfig) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BIG],
        input=json.dumps(storage.dump_with_secrets()),
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) < 120 << 10, "KiB above the idle process, for 512 MiB"


def test_a_writer_that_nobody_has_heard_of_for_too_long_does_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path))
    with store.begin(WORKLOAD, checkpoint_uid="uid") as writer:
        with writer.open_stream("core.img") as stream:
            stream.write(b"state")
        late = time.clock_gettime(time.CLOCK_BOOTTIME) + TIME_TO_LIVE_SECONDS + 1
        monkeypatch.setattr("cedana_sched.store.intents.time.clock_gettime", lambda _: late)
        with pytest.raises(StoreUnavailableError, match="no heartbeat of this writer has reached the store for 180 s"):
            writer.commit(metadata("uid"))

    assert store.list() == []
