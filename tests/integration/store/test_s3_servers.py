"""The same promises on two S3 servers that share no code, and what only a bucket has: uploads that never ended."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from minio import Minio

from cedana_sched.cluster.coordinator.storage_probe import probe_briefly
from cedana_sched.model.errors import IntegrityError, StoreError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.capabilities import probe_capabilities
from cedana_sched.store.s3 import PART_BYTES, S3Backend
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.stale_s3_uploads import sweep_uploads
from cedana_sched.store.storage_config import S3Location, StorageConfig
from tests.servers.snapshots import take
from tests.servers.versitygw import Server

pytestmark = pytest.mark.s3


@pytest.fixture(params=["versitygw", "swift"])
def bucket(request: pytest.FixtureRequest) -> StorageConfig:
    """A bucket of each server."""
    if request.param == "swift":
        swift: StorageConfig = request.getfixturevalue("swift_storage")
        return swift
    server: Server = request.getfixturevalue("s3_server")
    return server.new_bucket()


def test_both_servers_are_found_to_create_conditionally_and_to_read_ranges(bucket: StorageConfig) -> None:
    assert probe_capabilities(open_backend(bucket)) == (True, True)


def test_a_check_measures_and_leaves_nothing(bucket: StorageConfig) -> None:
    report = SnapshotStore.open(bucket).check_storage()

    assert report.commit_protocol == "conditional create"
    assert report.write_bytes_per_second > 1e6
    assert report.read_bytes_per_second > 1e6
    assert list(open_backend(bucket).list("probe")) == []


def test_a_look_finds_a_bucket_that_is_gone_and_leaves_nothing(bucket: StorageConfig) -> None:
    probe_briefly(bucket)
    assert list(open_backend(bucket).list("probe")) == []
    assert bucket.s3 is not None
    gone = StorageConfig(s3=bucket.s3.model_copy(update={"bucket": "nobody-has-made-it"}))
    with pytest.raises(StoreError, match="nobody-has-made-it"):
        probe_briefly(gone)


def test_two_generations_in_several_packs_come_back(bucket: StorageConfig, tmp_path: Path) -> None:
    store = SnapshotStore.open(bucket, pack_bytes=12 << 20)
    workload = Identity("two-generations", "job")
    memory = bytearray(random.Random(1).randbytes(30 << 20))
    first = take(store, workload, {"pages-1.img": bytes(memory)})
    memory[5 << 20 : (5 << 20) + 4] = b"new!"
    second = take(store, workload, {"pages-1.img": bytes(memory)})

    store.open_snapshot(second.ref).stage(tmp_path)
    assert (tmp_path / "pages-1.img").read_bytes() == memory
    assert second.summary.stats.new_bytes == 4096
    assert len(first.summary.packs) == 3
    store.remove(first.ref)
    for _ in range(3):
        store.collect_garbage(workload.namespace, grace_seconds=0)
    assert store.verify(second.ref).ok


def count_uploads(location: S3Location, prefix: str) -> int:
    """How many unfinished uploads the server knows below our prefix."""
    seen: list[str] = []

    def spare(key: str) -> bool:
        seen.append(key)
        return True

    sweep_uploads(location, f"{location.prefix}/{prefix}", float("inf"), spare)
    return len(seen)


def begin_upload(location: S3Location, key: str) -> None:
    """What a writer leaves that dies within a pack."""
    keys = location.bucket_keys()
    assert keys is not None
    endpoint = str(location.endpoint).removeprefix("http://")
    client = Minio(endpoint, access_key=keys[0], secret_key=keys[1], secure=False, region=location.region)
    client._create_multipart_upload(location.bucket, f"{location.prefix}/{key}", {})


def test_an_upload_that_is_given_up_is_aborted_and_one_that_was_cut_off_is_swept(bucket: StorageConfig) -> None:
    location = bucket.s3
    assert location is not None
    backend = S3Backend(location)
    block = bytes(PART_BYTES)

    def unfinished() -> int:
        return count_uploads(location, "v1/uploads/")

    sink = backend.open_sink("v1/uploads/packs/given-up-000000")
    for _ in range(4):
        sink.write(block)
    sink.abort()
    assert unfinished() == 0

    begin_upload(location, "v1/uploads/packs/cutoff-000000")
    assert unfinished() == 1
    assert backend.sweep_partial("v1/uploads", 0, lambda key: key.endswith("packs/cutoff-000000")) == 0
    assert backend.sweep_partial("v1/uploads", 0, lambda _: False) == 1
    assert unfinished() == 0
    assert list(backend.list("v1/uploads")) == []


def test_a_store_below_no_prefix_works_too(s3_server: Server) -> None:
    config = s3_server.new_bucket()
    assert config.s3 is not None
    store = SnapshotStore.open(StorageConfig(s3=config.s3.model_copy(update={"prefix": ""})))
    manifest = take(store, Identity("team-a", "job"), {"core.img": b"x"})

    assert store.collect_garbage(grace_seconds=0)[0].namespace == "team-a"
    assert store.open_snapshot(manifest.ref).read("core.img") == b"x"
    assert layout.manifest_key(manifest.ref).startswith("v1/team-a/snapshots/job/0/main/")


def test_behind_the_end_of_an_object_there_is_nothing(bucket: StorageConfig) -> None:
    """A server says 416 to that, also for any part of an empty object."""
    backend = open_backend(bucket)
    for key, data in (("v1/empty", b""), ("v1/short", b"short")):
        backend.put(key, data)
        assert bytes(backend.get_range(key, 0, 10)) == data
        assert bytes(backend.get_range(key, 5, 10)) == b""
        assert bytes(backend.get_range(key, 100, 10)) == b""


def test_an_empty_manifest_is_damaged_and_keeps_nothing_else_from_being_read(bucket: StorageConfig) -> None:
    store, workload = SnapshotStore.open(bucket), Identity("emptied", "job")
    first = take(store, workload, {"core.img": b"memory"}).ref
    open_backend(bucket).put(layout.manifest_key(SnapshotRef(workload, 2)), b"")

    latest = store.latest_snapshot_of(workload)

    assert latest is not None
    assert latest.ref == first
    with pytest.raises(IntegrityError):
        store.open_snapshot(SnapshotRef(workload, 2))
    assert take(store, workload, {"core.img": b"memory"}).ref.generation == 3
