"""Finding one replica's snapshot costs what that replica has, however many others there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.agent.restore_orders import RestoreOrders
from cedana_sched.agent.staging import Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import FORMAT_VERSION
from cedana_sched.model.orders import FindSnapshot, SnapshotFound
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.manifest_format import encode_manifest
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take
from tests.unit.agent.agent_builders import FakeRuntime

REPLICA = Identity("team-a", "job", 3)
GENERATIONS = 4


class Bench:
    """Many replicas with some generations each, and an agent that has read none of them."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self.writer = SnapshotStore(CountingBackend(folder / "store"))
        for index in range(replicas):
            for generation in range(GENERATIONS):
                take(self.writer, Identity("team-a", "job", index), {"core.img": b"%d" % generation}, f"{generation}")
        self.backend = CountingBackend(folder / "store")
        self.store = SnapshotStore(self.backend)
        (folder / "cgroup").mkdir()
        runtime = FakeRuntime(folder / "cgroup")
        self.returns = RestoreOrders(runtime, runtime, self.store, Staging(folder / "staged", "4.2.1"), StoreThreads())

    def damage(self, generation: int) -> None:
        key = layout.manifest_key(SnapshotRef(REPLICA, generation))
        self.backend.put(key, b"damaged")


@pytest.mark.parametrize("replicas", [5, 25])
async def test_find_reads_one_manifest_of_one_replica(tmp_path: Path, replicas: int) -> None:
    bench = Bench(tmp_path, replicas)

    assert await bench.returns.find(FindSnapshot("r1", REPLICA)) == SnapshotFound(
        "r1", SnapshotRef(REPLICA, GENERATIONS)
    )

    assert (bench.backend.requests["list"], bench.backend.keys_listed) == (1, GENERATIONS)
    assert bench.backend.keys_read == [layout.manifest_key(SnapshotRef(REPLICA, GENERATIONS))]


async def test_find_reads_on_only_past_what_it_cannot_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 4)
    bench.damage(4)

    found = await bench.returns.find(FindSnapshot("r1", REPLICA, excluding=("2",)))

    assert found == SnapshotFound("r1", SnapshotRef(REPLICA, 2))
    assert set(bench.backend.keys_read) == {layout.manifest_key(SnapshotRef(REPLICA, one)) for one in (4, 3, 2)}


async def test_a_generation_of_a_newer_format_hides_no_older_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 4)
    manifest = bench.writer.open_snapshot(SnapshotRef(REPLICA, 4)).manifest
    bench.backend.put(layout.manifest_key(manifest.ref), encode_manifest(manifest, version=FORMAT_VERSION + 1))

    latest = bench.store.latest_snapshot_of(REPLICA)

    assert latest is not None
    assert latest.ref == SnapshotRef(REPLICA, 3)


def test_retention_reads_the_generations_of_its_own_replica(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 12)
    bench.backend.forget()

    gone = bench.store.apply_retention(REPLICA, Retention(keep_last=2))

    assert [ref.generation for ref in gone] == [1, 2]
    assert all(key.startswith(layout.identity_folder(REPLICA)) for key in bench.backend.keys_read)
    assert bench.backend.reads <= GENERATIONS + 1
