"""Retention never takes the last generation that could be continued, whatever is newer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import take

WORKLOAD = Identity("team-a", "gromacs")
NOW = 4e9


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = SnapshotStore.open(StorageConfig(path=tmp_path))
    for generation in range(1, 5):
        take(store, WORKLOAD, {"core.img": b"%d" % generation})
    return store


def damage(tmp_path: Path, generation: int, part: str) -> None:
    """Spoil the header, the body, or the packs of a generation."""
    backend = PosixBackend(tmp_path)
    key = layout.manifest_key(SnapshotRef(WORKLOAD, generation))
    if part == "packs":
        packs = SnapshotStore(backend).open_snapshot(SnapshotRef(WORKLOAD, generation)).manifest.summary.packs
        backend.delete(layout.pack_key("team-a", pack) for pack in packs)
        return
    data = bytearray(backend.get(key, at_most=1 << 20))
    data[120 if part == "header" else -1] ^= 0xFF
    backend.put(key, data)


def left(tmp_path: Path) -> list[int]:
    fresh = SnapshotStore.open(StorageConfig(path=tmp_path))
    return sorted(ref.generation for ref in fresh._catalogue.newest_generations_of(WORKLOAD).committed)


@pytest.mark.parametrize("part", ["header", "body", "packs"])
@pytest.mark.parametrize("policy", [Retention(keep_last=1), Retention(keep_last=9, max_age_seconds=1)])
def test_a_damaged_newest_generation_is_not_the_one_that_is_always_kept(
    store: SnapshotStore, tmp_path: Path, part: str, policy: Retention
) -> None:
    damage(tmp_path, 4, part)

    SnapshotStore.open(StorageConfig(path=tmp_path)).apply_retention(WORKLOAD, policy, NOW)

    assert 3 in left(tmp_path)
    assert store.open_snapshot(SnapshotRef(WORKLOAD, 3)).read("core.img") == b"3"
    assert not {1, 2} & set(left(tmp_path)), "older ones go all the same"


def test_spared_generations_stay_beside_what_the_policy_keeps(store: SnapshotStore, tmp_path: Path) -> None:
    gone = store.apply_retention(WORKLOAD, Retention(keep_last=1, max_age_seconds=1), NOW, spare={2})

    assert [ref.generation for ref in gone] == [1, 3]
    assert left(tmp_path) == [2, 4]
