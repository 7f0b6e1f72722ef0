"""Of all writers of one generation exactly one commits it, whether or not the store can create conditionally."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cedana_sched.model.errors import CommitConflictError, StoreUnavailableError, UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import capabilities, layout
from cedana_sched.store.backend import Backend, Buffer, Capabilities
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import metadata, take

WORKLOAD = Identity("team-a", "gromacs")
DATA = {"core.img": b"state"}


@pytest.fixture(params=["conditional create", "claims"])
def protocol_store(
    request: pytest.FixtureRequest, storage: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> SnapshotStore:
    """A store that has, or is taken not to have, conditional create."""
    if request.param == "claims":
        monkeypatch.setattr(
            "cedana_sched.store.snapshot_store.capabilities_of",
            lambda _: Capabilities(conditional_create=False, ranges=True),
        )
    return SnapshotStore.open(storage)


def test_two_writers_of_one_generation_do_not_both_commit(protocol_store: SnapshotStore) -> None:
    store = protocol_store
    with store.begin(WORKLOAD, checkpoint_uid="one") as one, store.begin(WORKLOAD, checkpoint_uid="two") as two:
        assert one.ref == two.ref
        one.commit(metadata("one"))
        with pytest.raises(CommitConflictError):
            two.commit(metadata("two"))

    (only,) = store.list()
    assert only.checkpoint_uid == "one"


def test_of_many_writers_at_once_at_most_one_commits(protocol_store: SnapshotStore) -> None:
    store = protocol_store
    committed: list[str] = []
    start = threading.Barrier(4, timeout=60)

    def race(uid: str) -> None:
        with store.begin(WORKLOAD, checkpoint_uid=uid) as writer:
            start.wait()
            try:
                writer.commit(metadata(uid))
            except CommitConflictError:
                return
            committed.append(uid)

    threads = [threading.Thread(target=race, args=(f"uid-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [one.checkpoint_uid for one in store.list()] == committed
    assert len(committed) <= 1


def test_a_repeated_checkpoint_finds_what_it_has_committed(protocol_store: SnapshotStore) -> None:
    manifest = take(protocol_store, WORKLOAD, DATA, "once")

    found = protocol_store.find_committed(WORKLOAD, "once")
    assert found == manifest.summary
    with pytest.raises(CommitConflictError, match="has committed"):
        protocol_store.begin(WORKLOAD, checkpoint_uid="once")


def test_numbers_of_removed_generations_do_not_come_back(protocol_store: SnapshotStore) -> None:
    store = protocol_store
    for _ in range(2):
        take(store, WORKLOAD, DATA)
    for generation in (1, 2):
        store.remove(SnapshotRef(WORKLOAD, generation))
    for _ in range(3):
        store.collect_garbage(grace_seconds=0)

    assert store.list() == []
    assert take(store, WORKLOAD, DATA).ref.generation == 3


def test_leaving_without_commit_leaves_nothing(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage, pack_bytes=1 << 20)
    with store.begin(WORKLOAD, checkpoint_uid="given-up") as writer, writer.open_stream("pages-1.img") as stream:
        for number in range(40):
            stream.write(number.to_bytes(4, "little") * (1 << 18))

    data_keys = layout.data_keys_folder("team-a")  # of a sealed store: the namespace's, not the writer's
    assert [one.key for one in open_backend(storage).list(layout.ROOT) if not one.key.startswith(data_keys)] == []


def test_identities_are_told_apart(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    identities = [
        Identity("team-a", "job"),
        Identity("team-a", "job", 1),
        Identity("team-a", "job", 0, "sidecar"),
        Identity("team-a", "job.2"),
        Identity("team-b", "job"),
    ]
    for number, identity in enumerate(identities):
        take(store, identity, {"core.img": b"%d" % number})

    for number, identity in enumerate(identities):
        latest = store.latest_snapshot_of(identity)
        assert latest is not None
        assert latest.ref == SnapshotRef(identity, 1)
        assert store.open_snapshot(latest.ref).read("core.img") == b"%d" % number
    assert {one.ref.identity for one in store.list("team-a")} == set(identities[:4])
    assert {one.ref.identity for one in store.list("team-a", "job")} == set(identities[:3])
    assert [one.ref.identity for one in store.list()] == identities


def test_nothing_is_shared_between_namespaces(storage: StorageConfig) -> None:
    store = SnapshotStore.open(storage)
    memory = {"pages-1.img": bytes(range(256)) * 4096}
    take(store, Identity("team-a", "job"), memory)

    other = take(store, Identity("team-b", "job"), memory)

    assert other.summary.stats.reused_bytes == 0
    keys = [entry.key for entry in open_backend(storage).list(layout.namespace_folder("team-b"))]
    assert all(layout.pack_key("team-b", name) in keys for name in other.summary.packs)


def test_a_commit_whose_answer_was_lost_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(PosixBackend):
        """Does what it is asked, and the answer is lost on the way."""

        def put_if_absent(self, key: str, data: Buffer) -> bool:
            super().put_if_absent(key, data)
            raise StoreUnavailableError("the connection broke")

    monkeypatch.setattr(
        "cedana_sched.store.snapshot_store.capabilities_of",
        lambda _: Capabilities(conditional_create=True, ranges=True),
    )
    store = SnapshotStore(Forgetful(tmp_path / "store"))

    manifest = take(store, WORKLOAD, {"pages-1.img": bytes(range(256)) * 1024})

    assert store.verify(manifest.ref).ok


def test_an_unknown_outcome_of_the_commit_keeps_the_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest may yet appear: had its packs been removed, it would name what is not there."""

    class Dying(PosixBackend):
        dead = False

        def put_if_absent(self, key: str, data: Buffer) -> bool:
            super().put_if_absent(key, data)
            self.dead = True
            raise StoreUnavailableError("the connection broke")

        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            if self.dead:
                raise StoreUnavailableError("the connection broke")
            return super().list(prefix)

    monkeypatch.setattr(
        "cedana_sched.store.snapshot_store.capabilities_of",
        lambda _: Capabilities(conditional_create=True, ranges=True),
    )
    with pytest.raises(StoreUnavailableError):
        take(SnapshotStore(Dying(tmp_path / "store")), WORKLOAD, {"pages-1.img": bytes(range(256)) * 1024}, "uid")

    store = SnapshotStore(PosixBackend(tmp_path / "store"))
    found = store.find_committed(WORKLOAD, "uid")
    assert found is not None
    assert store.verify(found.ref).ok


class Overwriting(PosixBackend):
    """Says yes to a conditional create and overwrites, as some S3 servers do."""

    @property
    def description(self) -> str:
        return f"an overwriting store in {self.root}"

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self.put(key, data)
        return True


def test_a_store_that_overwrites_is_found_out(tmp_path: Path) -> None:
    backend: Backend = Overwriting(tmp_path / "store")

    assert not capabilities.capabilities_of(backend).conditional_create
    store = SnapshotStore(backend)
    report = store.check_storage()
    assert not report.conditional_create
    assert report.commit_protocol == "claim, then write, then look again"
    manifest = take(store, WORKLOAD, DATA)
    assert layout.manifest_key(manifest.ref, manifest.summary.writer) in {
        entry.key for entry in backend.list(layout.ROOT)
    }


def test_commit_asks_for_finished_streams_and_the_right_checkpoint(tmp_path: Path) -> None:
    store = SnapshotStore(PosixBackend(tmp_path / "store"))
    with store.begin(WORKLOAD, checkpoint_uid="uid") as writer:
        stream = writer.open_stream("core.img")
        with pytest.raises(UsageError, match="still open"):
            writer.commit(metadata("uid"))
        stream.close()
        with pytest.raises(UsageError, match="exists already"):
            writer.open_stream("core.img")
        with pytest.raises(UsageError, match="name of a stream"):
            writer.open_stream("../core.img")
        with pytest.raises(UsageError, match="another checkpoint"):
            writer.commit(metadata("other"))
