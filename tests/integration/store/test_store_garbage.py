"""Garbage collection removes what nobody needs, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import metadata, take

WORKLOAD = Identity("team-a", "gromacs")


def pages(seed: int, count: int = 400) -> bytes:
    import random

    return random.Random(seed).randbytes(count * 4096)


def keys(storage: StorageConfig, folder: str = layout.ROOT) -> list[str]:
    return sorted(entry.key for entry in open_backend(storage).list(folder))


def collect(store: SnapshotStore) -> tuple[int, int, int]:
    (report,) = store.collect_garbage("team-a", grace_seconds=0)
    return report.condemned_packs, report.removed_packs, report.rescued_packs


def test_packs_of_a_removed_snapshot_go_in_the_second_run(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    kept = take(store, WORKLOAD, {"pages-1.img": pages(2)})
    store.remove(first.ref)

    assert collect(store) == (1, 0, 0)
    assert collect(store) == (0, 1, 0)
    assert collect(store) == (0, 0, 0)

    assert keys(storage, layout.packs_folder("team-a")) == [
        layout.pack_key("team-a", name) for name in kept.summary.packs
    ]
    assert keys(storage, layout.condemned_folder("team-a")) == []
    assert keys(storage, layout.pages_folder("team-a")) == [kept.summary.page_index]
    assert store.verify(kept.ref).ok


def test_packs_that_a_later_generation_refers_to_stay(storage: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    second = take(store, WORKLOAD, {"pages-1.img": pages(1)[:-4096] + pages(2, 1)})
    assert store.apply_retention(WORKLOAD, Retention(keep_last=1)) == (first.ref,)

    assert collect(store) == (0, 0, 0)
    assert collect(store) == (0, 0, 0)

    store.open_snapshot(second.ref).stage(tmp_path)
    assert (tmp_path / "pages-1.img").read_bytes() == pages(1)[:-4096] + pages(2, 1)


def test_a_writer_at_work_loses_nothing(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage, pack_bytes=1 << 20)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    with store.begin(WORKLOAD, checkpoint_uid="second") as writer:
        store.remove(first.ref)
        with writer.open_stream("pages-1.img") as stream:
            stream.write(pages(1))
            stream.write(pages(2, 1000))
            assert collect(store)[0] == 0
            assert collect(store)[0] == 0
        manifest = writer.commit(metadata("second"))

    assert manifest.summary.stats.reused_bytes == 400 * 4096
    assert store.verify(manifest.ref).ok


def test_a_writer_gives_up_when_a_pack_that_it_names_is_being_collected(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    with store.begin(WORKLOAD, checkpoint_uid="second") as writer:
        with writer.open_stream("pages-1.img") as stream:
            stream.write(pages(1))
        open_backend(storage).put(f"{layout.condemned_folder('team-a')}/{first.summary.packs[0]}", b"")

        with pytest.raises(StoreUnavailableError, match="was given up while it was taken"):
            writer.commit(metadata("second"))

    assert [one.ref for one in store.list()] == [first.ref]


def test_a_condemned_pack_is_not_referred_to(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    open_backend(storage).put(f"{layout.condemned_folder('team-a')}/{first.summary.packs[0]}", b"")

    second = take(store, WORKLOAD, {"pages-1.img": pages(1)})

    assert second.summary.stats.reused_bytes == 0
    assert set(second.summary.packs).isdisjoint(first.summary.packs)
    assert collect(store) == (0, 0, 1)


def test_a_manifest_that_cannot_be_read_keeps_every_pack(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": pages(1)})
    open_backend(storage).put(layout.manifest_key(first.ref), b"damaged")

    fresh = SnapshotStore.open(storage)
    for _ in range(3):
        (report,) = fresh.collect_garbage("team-a", grace_seconds=0)
        assert (report.removed_packs, report.blocked_by) == (0, (str(first.ref),))

    assert keys(storage, layout.packs_folder("team-a"))


UPLOADER = """
import json, sys
from cedana_sched.model.identity import Identity
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.snapshot_store import SnapshotStore
store = SnapshotStore.open(StorageConfig.load(json.load(sys.stdin)), pack_bytes=24 << 20)
writer = store.begin(Identity("team-a", "gromacs"), checkpoint_uid="killed")
stream = writer.open_stream("pages-1.img")
source = open("/dev/urandom", "rb")
for _ in range(60):
    stream.write(source.read(1 << 20))
print("uploading", flush=True)
while True:
    stream.write(source.read(1 << 20))
"""


def test_a_writer_killed_in_the_middle_leaves_nothing_visible_and_is_cleaned_up(
    storage: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", UPLOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(storage.dump_with_secrets()).encode())
    process.stdin.close()
    assert process.stdout.readline() == b"uploading\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    store = SnapshotStore.open(storage)
    assert store.list() == []
    assert keys(storage, layout.packs_folder("team-a"))
    assert collect(store)[:2] == (0, 0), "its intent still protects it"
    monkeypatch.setattr("cedana_sched.store.intents.CLOCK_GRAIN_SECONDS", -1e9)
    condemned, removed, _ = collect(store)
    assert condemned > 0
    assert removed == 0
    assert collect(store)[1] == condemned
    assert set(keys(storage)) == set(keys(storage, layout.data_keys_folder("team-a")))
    assert take(store, WORKLOAD, {"pages-1.img": pages(1)}).ref.generation == 1
