"""The node's copies of page fingerprints stay few, whatever workloads come and go and whoever is killed meanwhile."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.page_fingerprint_cache import FingerprintCache
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import metadata, take

PAGE = 4096
INDEX_BYTES = 100 * 16
MEMORY = random.Random(1).randbytes(100 * PAGE)


def job(number: int) -> Identity:
    return Identity("team-a", f"job-{number}")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def store_of(tmp_path: Path, cache_bytes: int = 1 << 30) -> SnapshotStore:
    (tmp_path / "store").mkdir(exist_ok=True)
    config = StorageConfig(path=tmp_path / "store")
    return SnapshotStore.open(config, cache_directory=tmp_path / "cache", cache_bytes=cache_bytes)


def test_a_removed_job_leaves_nothing_on_the_node(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for number in range(5):
        store.remove(take(store, job(number), {"pages-1.img": MEMORY}).ref)

    assert files(tmp_path / "cache") == []
    assert list((tmp_path / "cache").iterdir()) == [], "nor empty folders"


def test_the_copies_used_longest_ago_make_room(tmp_path: Path) -> None:
    store = store_of(tmp_path, cache_bytes=4 * INDEX_BYTES)
    for number in range(4):
        manifest = take(store, job(number), {"pages-1.img": MEMORY})
        path = FingerprintCache(tmp_path / "cache").copy_path_for(manifest.ref, manifest.summary.writer)
        assert path is not None
        os.utime(path, (number, number))
    store.begin(job(0), checkpoint_uid="uses it").abort()

    for number in range(4, 6):
        take(store, job(number), {"pages-1.img": MEMORY})

    assert size(tmp_path / "cache") <= 4 * INDEX_BYTES
    assert [path.relative_to(tmp_path / "cache").parts[1] for path in files(tmp_path / "cache")] == [
        "job-0",
        "job-3",
        "job-4",
        "job-5",
    ]


@pytest.mark.parametrize("limit", [0, INDEX_BYTES - 1])
def test_what_does_not_fit_is_not_kept_and_the_next_generation_is_small_all_the_same(
    tmp_path: Path, limit: int
) -> None:
    store = store_of(tmp_path, cache_bytes=limit)
    take(store, job(0), {"pages-1.img": MEMORY})

    assert take(store, job(0), {"pages-1.img": MEMORY}).summary.stats.new_bytes == 0
    assert files(tmp_path / "cache") == []


def test_a_limit_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache limit: -1 is negative"):
        FingerprintCache(tmp_path, -1)


def test_what_a_killed_process_was_writing_goes_and_what_one_writes_now_stays(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    folder = tmp_path / "cache" / "team-a" / "job-9" / "0" / "main"
    folder.mkdir(parents=True)
    left, busy = folder / ".new-left", folder / ".new-busy"
    left.write_bytes(b"half")
    with busy.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        take(store, job(0), {"pages-1.img": MEMORY})
        assert not left.exists()
        assert busy.exists()
    take(store, job(0), {"pages-1.img": MEMORY})
    assert not busy.exists()


def test_what_others_keep_in_the_folder_stays(tmp_path: Path) -> None:
    """An engine's cache holds the CRIU that it runs; a folder may be given that is not ours alone."""
    store = store_of(tmp_path, cache_bytes=2 * INDEX_BYTES)
    others = [tmp_path / "cache" / name for name in ("criu-4/bin/criu", "tini/tini", "a/b/0/main/notes", ".new-file")]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10 * INDEX_BYTES))
    for number in range(3):
        take(store, job(number), {"pages-1.img": MEMORY})

    assert all(path.exists() for path in others)
    assert size(tmp_path / "cache" / "team-a") == 2 * INDEX_BYTES, "and takes nothing of our own limit"


def test_a_snapshot_that_is_given_up_after_its_last_page_leaves_no_copy(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    first = store.begin(job(0), checkpoint_uid="a")
    with store.begin(job(0), checkpoint_uid="b") as second:
        for writer in (first, second):
            with writer.open_stream("pages-1.img") as stream:
                stream.write(MEMORY)
        first.commit(metadata("a"))
        with pytest.raises(Exception, match="exists already"):
            second.commit(metadata("b"))

    (only,) = files(tmp_path / "cache")
    assert only.name == f"{first.ref.generation:010d}-{first.writer}"


@pytest.mark.parametrize("spoilt", [b"", b"damaged", bytes(INDEX_BYTES)])
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, spoilt: bytes) -> None:
    store = store_of(tmp_path)
    take(store, job(0), {"pages-1.img": MEMORY})
    (copy,) = files(tmp_path / "cache")
    copy.write_bytes(spoilt)

    assert take(store, job(0), {"pages-1.img": MEMORY}).summary.stats.new_bytes == 0


def test_the_folder_may_be_emptied_at_any_time(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    take(store, job(0), {"pages-1.img": MEMORY})
    shutil.rmtree(tmp_path / "cache")

    assert take(store, job(0), {"pages-1.img": MEMORY}).summary.stats.new_bytes == 0
    with store.begin(job(0), checkpoint_uid="emptied midway") as writer:
        with writer.open_stream("pages-1.img") as stream:
            stream.write(MEMORY[: 50 * PAGE])
            shutil.rmtree(tmp_path / "cache")
            stream.write(MEMORY[50 * PAGE :])
        assert writer.commit(metadata("emptied midway")).summary.stats.new_bytes == 0
    assert take(store, job(0), {"pages-1.img": MEMORY}).summary.stats.new_bytes == 0
    assert len(files(tmp_path / "cache")) == 1


def test_a_snapshot_that_another_node_removed_is_forgotten_here(tmp_path: Path) -> None:
    here, elsewhere = store_of(tmp_path), SnapshotStore.open(StorageConfig(path=tmp_path / "store"))
    gone, stays = (take(here, job(number), {"pages-1.img": MEMORY}).ref for number in range(2))
    elsewhere.remove(gone)
    here.tidy_cache()
    assert len(files(tmp_path / "cache")) == 2, "a young copy may be one of a commit under way"

    for path in files(tmp_path / "cache"):
        os.utime(path, (1, 1))
    here.tidy_cache()

    (only,) = files(tmp_path / "cache")
    assert only.relative_to(tmp_path / "cache").parts[:2] == (stays.identity.namespace, stays.identity.id)


def test_many_writers_at_once_keep_the_limit_and_lose_no_copy_that_fits(tmp_path: Path) -> None:
    """Threads stand for processes: the folder is all that they share."""
    caches = [FingerprintCache(tmp_path, 10 * INDEX_BYTES) for _ in range(4)]

    def write(cache: FingerprintCache, of: int) -> None:
        for number in range(25):
            ref = SnapshotRef(job(of * 100 + number), 1)
            if (copy := cache.new_copy(ref, "w" * 32)) is not None:
                copy.write(bytes(INDEX_BYTES))
                copy.finish()
            if number % 3 == 0:
                cache.drop_snapshot(ref)

    threads = [threading.Thread(target=write, args=(cache, of)) for of, cache in enumerate(caches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caches[0].evict_to_limit()

    assert 0 < size(tmp_path) <= 10 * INDEX_BYTES
    assert not [path for path in files(tmp_path) if path.name.startswith(".")]


def test_what_was_fetched_beforehand_is_not_fetched_while_the_workload_is_frozen(tmp_path: Path) -> None:
    ref = take(SnapshotStore.open(StorageConfig(path=tmp_path)), job(0), {"pages-1.img": MEMORY}).ref
    backend = CountingBackend(tmp_path)
    store = SnapshotStore(backend, cache_directory=tmp_path / "cache-of-another-node")
    store.prefetch_for_next_generation(ref)
    assert any(key.startswith(layout.pages_folder("team-a")) for key in backend.keys_read)
    backend.forget()
    store.prefetch_for_next_generation(ref)
    assert not backend.reads, "it is there"

    second = take(store, job(0), {"pages-1.img": MEMORY})

    assert second.summary.stats.new_bytes == 0
    assert not [key for key in backend.keys_read if key.startswith(layout.pages_folder("team-a"))]


def test_bytes_that_are_wrong_once_are_fetched_again(tmp_path: Path) -> None:
    class Spoiling(PosixBackend):
        wrong = 1

        def get_range(self, key: str, offset: int, length: int) -> bytes:
            data = super().get_range(key, offset, length)
            if key.startswith(layout.pages_folder("team-a")) and self.wrong:
                self.wrong -= 1
                return bytes(len(data))
            return data

    take(SnapshotStore.open(StorageConfig(path=tmp_path)), job(0), {"pages-1.img": MEMORY})

    second = take(SnapshotStore(Spoiling(tmp_path)), job(0), {"pages-1.img": MEMORY})

    assert second.summary.stats.new_bytes == 0
