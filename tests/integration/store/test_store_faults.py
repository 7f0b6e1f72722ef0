"""What goes wrong is said in words: which snapshot, which part, what to do. Nothing half-written becomes visible."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.errors import (
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    StoreDeniedError,
    StoreUnavailableError,
)
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import FORMAT_VERSION, Manifest
from cedana_sched.store import layout
from cedana_sched.store.manifest_format import encode_manifest
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import take
from tests.servers.versitygw import Server, running

WORKLOAD = Identity("team-a", "gromacs")


def noise(count: int, seed: int = 1) -> bytes:
    import random

    return random.Random(seed).randbytes(count)


def damage_pack(storage: StorageConfig, manifest: Manifest, at: int) -> str:
    key = layout.pack_key("team-a", manifest.summary.packs[0])
    backend = open_backend(storage)
    data = bytearray(backend.get(key, at_most=128 << 20))
    data[at] ^= 1
    backend.put(key, data)
    return manifest.summary.packs[0]


def test_a_damaged_chunk_is_named_and_never_staged(storage: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(storage)
    manifest = take(store, WORKLOAD, {"core.img": b"small", "pages-1.img": noise(3 << 20)})
    pack = damage_pack(storage, manifest, 1_500_000)

    with pytest.raises(IntegrityError) as caught:
        store.open_snapshot(manifest.ref).stage(tmp_path)

    for part in (str(manifest.ref), "stream pages-1.img", pack, "restore an older generation"):
        assert part in str(caught.value)
    report = store.verify(manifest.ref)
    assert (report.ok, report.damaged) == (False, 1)
    assert report.bytes_verified == 2 * (1 << 20) + 5


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_damage_in_compressed_chunks_is_found(compression: str, tmp_path: Path) -> None:
    storage = StorageConfig(path=tmp_path / "store")
    store = SnapshotStore.open(storage, compression=compression)
    manifest = take(store, WORKLOAD, {"pages-1.img": b"".join(b"%08d" % n for n in range(300_000))})
    damage_pack(storage, manifest, 1000)

    assert store.verify(manifest.ref).damaged == 1


def test_a_missing_pack_is_named(storage: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(storage)
    manifest = take(store, WORKLOAD, {"pages-1.img": noise(2 << 20)})
    open_backend(storage).delete([layout.pack_key("team-a", manifest.summary.packs[0])])

    with pytest.raises(IntegrityError, match=f"{manifest.summary.packs[0]} is damaged: the pack is missing"):
        store.open_snapshot(manifest.ref).stage(tmp_path)
    assert store.verify(manifest.ref).damaged == 2


def test_a_damaged_manifest_is_named_and_hides_no_other(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"core.img": b"1"})
    second = take(store, WORKLOAD, {"core.img": b"2"})
    backend = open_backend(storage)
    data = bytearray(backend.get(layout.manifest_key(second.ref), at_most=1 << 20))
    data[120] ^= 0xFF
    backend.put(layout.manifest_key(second.ref), data)

    fresh = SnapshotStore.open(storage)
    with pytest.raises(IntegrityError, match=f"{second.ref}.*(header is damaged|seal is broken)"):
        fresh.open_snapshot(second.ref)
    assert [one.ref for one in fresh.list()] == [first.ref]
    assert fresh.latest_snapshot_of(WORKLOAD) == first.summary
    assert take(fresh, WORKLOAD, {"core.img": b"3"}).ref.generation == 3
    fresh.remove(second.ref)
    assert [ref.generation for ref in fresh.committed_snapshots()] == [1, 3]


def test_a_damaged_generation_can_be_removed_and_the_newest_that_is_left_is_taken(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first, second = (take(store, WORKLOAD, {"core.img": noise(100_000, seed)}) for seed in (1, 2))
    damage_pack(storage, second, 50_000)
    assert not store.verify(second.ref).ok

    store.remove(second.ref)

    assert SnapshotStore.open(storage).latest_snapshot_of(WORKLOAD) == first.summary
    assert store.verify(first.ref).ok


def test_a_newer_format_is_refused_by_name(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    manifest = take(store, WORKLOAD, {"core.img": b"1"})
    data = encode_manifest(manifest, version=FORMAT_VERSION + 1)
    open_backend(storage).put(layout.manifest_key(manifest.ref), data)

    with pytest.raises(IncompatibleError, match=r"has format 2, this program reads up to 1 \(upgrade"):
        SnapshotStore.open(storage).open_snapshot(manifest.ref)


def test_a_manifest_moved_to_another_identity_is_refused(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    manifest = take(store, WORKLOAD, {"core.img": b"secret"})
    stolen = SnapshotRef(Identity("team-b", "thief"), 1)
    backend = open_backend(storage)
    backend.put(layout.manifest_key(stolen), backend.get(layout.manifest_key(manifest.ref), at_most=1 << 20))

    with pytest.raises(
        IntegrityError, match=r"its manifest is that of team-a/gromacs|data key \w+ of namespace team-b is not"
    ):
        store.open_snapshot(stolen)


def test_what_does_not_exist_is_said_with_what_does(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    manifest = take(store, WORKLOAD, {"core.img": b"1"})

    with pytest.raises(NotFoundError, match="generations there are: 1"):
        store.open_snapshot(SnapshotRef(WORKLOAD, 9))
    with pytest.raises(NotFoundError, match=r"core\.img"):
        store.open_snapshot(manifest.ref).read("nothing.img")
    with pytest.raises(NotFoundError):
        store.remove(SnapshotRef(WORKLOAD, 9))


def test_without_the_page_index_the_next_generation_is_written_in_full(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    first = take(store, WORKLOAD, {"pages-1.img": noise(2 << 20)})
    assert first.summary.page_index is not None
    open_backend(storage).put(first.summary.page_index, b"damaged")

    second = take(store, WORKLOAD, {"pages-1.img": noise(2 << 20)[4096:]})

    assert second.summary.stats.new_bytes == (2 << 20) - 4096
    assert store.verify(second.ref).ok


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "cedana-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_read_only_folder_is_denied(small_disk: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=small_disk / "store"))
    manifest = take(store, WORKLOAD, {"core.img": b"1"})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    for call in (
        store.check_storage,
        lambda: store.begin(WORKLOAD, checkpoint_uid="x"),
        lambda: store.remove(manifest.ref),
    ):
        with pytest.raises(StoreDeniedError, match="Read-only file system"):
            call()
    assert store.open_snapshot(manifest.ref).read("core.img") == b"1"
    with pytest.raises(StoreDeniedError):
        SnapshotStore.open(StorageConfig(path=small_disk / "other"))


def test_a_full_folder_is_unavailable_and_shows_nothing(small_disk: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=small_disk), pack_bytes=4 << 20)
    with pytest.raises(StoreUnavailableError, match=r"No space left.*free space"):
        take(store, WORKLOAD, {"pages-1.img": noise(24 << 20)})

    assert store.list() == []
    assert shutil.disk_usage(small_disk).used < 1 << 20
    assert take(store, WORKLOAD, {"pages-1.img": noise(2 << 20)}).ref.generation == 1


@pytest.mark.s3
def test_a_full_bucket_is_unavailable_and_shows_nothing(small_disk: Path) -> None:
    with running(small_disk) as server:
        config = server.new_bucket()
        store = SnapshotStore.open(config, pack_bytes=4 << 20)
        assert config.s3 is not None
        with pytest.raises(StoreUnavailableError, match=f"in the bucket {config.s3.bucket}") as caught:
            take(store, WORKLOAD, {"pages-1.img": noise(24 << 20)})

        assert "507 Insufficient Storage" in str(caught.value.evidence)
        assert store.list() == []
        assert take(store, WORKLOAD, {"pages-1.img": noise(2 << 20)}).ref.generation == 1


def test_a_folder_whose_parent_is_missing_is_denied(tmp_path: Path) -> None:
    with pytest.raises(StoreDeniedError, match=r"does not exist \(create .*mount"):
        SnapshotStore.open(StorageConfig(path=tmp_path / "not-mounted" / "store"))


@pytest.mark.s3
def test_wrong_keys_a_missing_bucket_and_no_server_are_told_apart(s3_server: Server) -> None:
    bucket = s3_server.new_bucket()
    assert bucket.s3 is not None
    wrong_keys = s3_server.config(bucket.s3.bucket, secret_key="wrong")  # noqa: S106
    no_bucket = s3_server.config("no-such-bucket")
    for config, words in ((wrong_keys, "refuses these keys"), (no_bucket, "no such bucket")):
        store = SnapshotStore.open(config)
        for call in (store.check_storage, store.list, lambda store=store: store.begin(WORKLOAD, checkpoint_uid="x")):
            with pytest.raises(StoreDeniedError, match=words):
                call()


@pytest.mark.s3
def test_a_store_that_dies_during_a_write_is_an_error_within_seconds(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        config = server.new_bucket()
        store = SnapshotStore.open(config, pack_bytes=16 << 20)
        block = noise(1 << 20)
        began = 0.0

        def upload() -> None:
            nonlocal began
            with store.begin(WORKLOAD, checkpoint_uid="x") as writer, writer.open_stream("pages-1.img") as stream:
                for number in range(400):
                    if number == 30:
                        server.kill()
                        began = time.monotonic()
                    stream.write(number.to_bytes(4, "little") + block)

        with pytest.raises(StoreUnavailableError, match="check the endpoint"):
            upload()
        assert time.monotonic() - began < 15
        server.start()
        assert store.list() == []
        assert take(store, WORKLOAD, {"core.img": b"1"}).ref.generation == 1


@pytest.mark.s3
def test_an_unreachable_endpoint_is_unavailable_within_seconds(tmp_path: Path) -> None:
    server = Server(tmp_path)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="no good answer came"):
        SnapshotStore.open(server.config("some-bucket")).check_storage()
    assert time.monotonic() - began < 15
