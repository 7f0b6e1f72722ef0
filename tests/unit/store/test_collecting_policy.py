"""Credentials that only collect: enough for all that a collection does, and of no use to who wants memory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from cedana_sched.model.errors import SealedError, StoreDeniedError, UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.collection_turns import collect_if_due
from cedana_sched.store.garbage import GarbageReport, collect_garbage
from cedana_sched.store.intents import Intent
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.sealing.key_file import KeyFile
from cedana_sched.store.sealing.seal_selection import SealSelection
from cedana_sched.store.session_policy import LONGEST_POLICY, garbage_collection_policy
from tests.servers.granted import GrantedBackend
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import take

UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
MINE, THEIRS = f"research.{UID}", f"finance.{UID}"
FOLDER = layout.namespace_folder(MINE)
MD = Identity(MINE, "md")
MEMORY = bytes(range(256)) * 320
WRITER = "a" * 32


@pytest.fixture
def place(tmp_path: Path) -> PosixBackend:
    (tmp_path / "store").mkdir()
    return PosixBackend(tmp_path / "store")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return new_keys(tmp_path)


def granted(place: PosixBackend) -> GrantedBackend:
    return GrantedBackend(place, garbage_collection_policy("bucket", "", MINE), FOLDER)


def collect(backend: GrantedBackend, keys: Path | None) -> GarbageReport:
    """As the node does whose turn it is, and as if the grace period were over."""
    seals = SealSelection(backend, KeyFile(keys) if keys is not None else None)

    def run() -> GarbageReport:
        catalogue = Catalogue(backend, seals)
        return collect_garbage(backend, catalogue, MINE, grace_seconds=0, time_to_live_seconds=0)

    report = collect_if_due(backend, MINE, 0, run).report
    assert report is not None
    return report


def test_a_sealed_namespace_is_collected_and_what_is_needed_stays(
    place: PosixBackend, keys: Path, tmp_path: Path
) -> None:
    store = sealed_store(place, keys)
    first, second = (take(store, MD, {"pages-1.img": data}).ref for data in (MEMORY, MEMORY[::-1]))
    store.remove(first)
    place.put(f"{layout.intents_folder(MINE)}/{WRITER}", msgspec.msgpack.encode(Intent(WRITER, MD)))
    place.put(layout.claim_key(SnapshotRef(MD, 9), WRITER), b"")
    os.utime(tmp_path / "store" / layout.intents_folder(MINE) / WRITER, (0, 0))
    backend = granted(place)
    reports = [collect(backend, keys) for _ in range(2)]
    assert [report.removed_packs for report in reports] == [0, 1]
    assert backend.refused == []
    assert store.verify(second).ok
    left = {entry.key for entry in place.list(FOLDER)}
    assert not any(WRITER in key for key in left)
    store.remove(second)
    assert [collect(backend, keys).is_empty for _ in range(2)] == [False, True]
    assert {entry.key.split("/")[2] for entry in place.list(FOLDER)} <= {"snapshots", "keys", "pages"}


def test_an_erased_namespace_is_collected_by_who_has_no_key_of_it(
    place: PosixBackend, keys: Path, tmp_path: Path
) -> None:
    store = sealed_store(place, keys)
    take(store, MD, {"pages-1.img": MEMORY})
    store.erase_sealed_snapshots(MINE)
    others = new_keys(tmp_path, "others")
    assert [collect(granted(place), others).removed_packs for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("has_keys", [False, True])
def test_who_cannot_open_what_is_sealed_removes_nothing(
    place: PosixBackend, keys: Path, tmp_path: Path, has_keys: bool
) -> None:
    """A namespace of another cluster; and what would be if whoever has the keys of all collected."""
    store = sealed_store(place, keys)
    ref = take(store, MD, {"pages-1.img": MEMORY}).ref
    others = new_keys(tmp_path, "others") if has_keys else None
    for _ in range(3):
        with pytest.raises(SealedError):
            collect(granted(place), others)
    assert store.verify(ref).ok


@pytest.mark.parametrize("what", ["packs/a-1", "pages/md/0/main/0000000001-a"])
def test_memory_is_not_read_and_nothing_is_forged(place: PosixBackend, what: str) -> None:
    backend, key = granted(place), f"{FOLDER}/{what}"
    place.put(key, b"memory")
    with pytest.raises(StoreDeniedError):
        backend.get(key, at_most=100)
    with pytest.raises(StoreDeniedError):
        backend.put(key, b"forged")


@pytest.mark.parametrize(
    "key", [layout.manifest_key(SnapshotRef(MD, 1)), layout.removed_key(SnapshotRef(MD, 1)), f"{FOLDER}/intents/a"]
)
def test_no_snapshot_is_written(place: PosixBackend, key: str) -> None:
    with pytest.raises(StoreDeniedError):
        granted(place).put(key, b"forged")


def test_no_data_key_is_removed_or_replaced(place: PosixBackend) -> None:
    backend, key = granted(place), layout.data_key_key(MINE, "0" * 32)
    assert [backend.is_allowed(f"{verb}Object", key) for verb in ("Get", "Put", "Delete")] == [True, False, False]


@pytest.mark.parametrize("action", ["GetObject", "PutObject", "DeleteObject", "ListBucket"])
def test_other_namespaces_are_out_of_reach(place: PosixBackend, action: str) -> None:
    backend = granted(place)
    for other in (THEIRS, "research", f"{MINE}0", f"research.{'0' * 8}{UID[8:]}"):
        for name in ("packs/", "collector", "references", "snapshots/md", "probe/x", "condemned/x", "keys/x"):
            assert not backend.is_allowed(action, f"{layout.ROOT}/{other}/{name}")
    assert not backend.is_allowed(action, f"{layout.ROOT}/")
    assert not backend.is_allowed(action, "probe/clock-1")


def test_long_names_fit_in_what_sts_takes() -> None:
    longest = "n" * 63 + f".{UID}"
    assert len(garbage_collection_policy("b" * 40, "p" * 20, longest)) < LONGEST_POLICY
    with pytest.raises(UsageError, match="too long"):
        garbage_collection_policy("b" * 63, "p" * 300, longest)
