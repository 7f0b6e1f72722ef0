"""A namespace in which somebody has laid more than fits memory: it is saved, and collected where that can be done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from cedana_sched.model.errors import CommitConflictError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import bounded_listing, collection_turns, garbage, intents, layout, references
from cedana_sched.store.backend import Entry
from cedana_sched.store.bounded_listing import CrowdedNamespaceError
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.commit import commit_manifest
from cedana_sched.store.garbage import collect_garbage, condemned_packs
from cedana_sched.store.intents import Intent
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take

NAMESPACE, OTHER = "team-a", "team-b"


class Crowded(PosixBackend):
    """A folder of which there is no end."""

    def __init__(self, root: Path, crowded: str) -> None:
        super().__init__(root)
        self.crowded = crowded
        self.listed = 0

    def list(self, prefix: str) -> Iterator[Entry]:
        yield from super().list(prefix)
        if prefix == self.crowded:
            for number in range(10_000):
                self.listed += 1
                yield Entry(f"{prefix}/{number:032x}-000001", 1, 0.0)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_listing, "MOST_LISTED", 100)
    monkeypatch.setattr(bounded_listing, "MOST_SAMPLED", 100)
    monkeypatch.setattr(bounded_listing, "PART", 30)


class Counted(PosixBackend):
    """Counts what is removed at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.parts: list[int] = []

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        self.parts.append(len(wanted))
        super().delete(wanted)


def objects(folder: Path, below: str = layout.ROOT) -> set[str]:
    return {entry.key for entry in PosixBackend(folder).list(below)}


def age(folder: Path, key: str) -> None:
    """As old as what nobody has touched for a day."""
    path = folder / key
    os.utime(path, (path.stat().st_mtime - 86_400,) * 2)


def lay(folder: Path, *keys: str) -> None:
    backend = PosixBackend(folder)
    for key in keys:
        backend.put(key, b"x")
        age(folder, key)


ANY = [f"{number:032x}" for number in range(500)]
LAID = {
    "packs": [layout.pack_key(NAMESPACE, f"{one}-000001") for one in ANY],
    "pages": [layout.pages_key(SnapshotRef(Identity(NAMESPACE, "job"), 1), one) for one in ANY],
    "intents": [f"{layout.intents_folder(NAMESPACE)}/{one}" for one in ANY],
    "claims": [layout.claim_key(SnapshotRef(Identity(NAMESPACE, "job"), 1), one) for one in ANY],
    "removed": [layout.removed_key(SnapshotRef(Identity(NAMESPACE, "job"), number)) for number in range(1, 500)],
    "foreign": [f"{layout.snapshots_folder(NAMESPACE)}/{one}" for one in ANY],
    "other jobs": [layout.removed_key(SnapshotRef(Identity(NAMESPACE, f"job-{one}"), 1)) for one in ANY],
}
STAYS = {"removed": {LAID["removed"][-1]}, "foreign": {*LAID["foreign"]}, "other jobs": {*LAID["other jobs"]}}
"""The last number of each workload, and what is none of ours, which costs nothing."""


@pytest.mark.parametrize("laid", LAID)
def test_whatever_somebody_lays_is_worked_off_in_bounded_turns(tmp_path: Path, laid: str) -> None:
    store = SnapshotStore(PosixBackend(tmp_path))
    kept = take(store, Identity(NAMESPACE, "kept"), {"pages-1.img": bytes(range(256)) * 320})
    store.remove(gone := take(store, Identity(NAMESPACE, "gone"), {"core.img": b"y"}).ref)
    lay(tmp_path, *LAID[laid])
    backend = Counted(tmp_path)

    for _ in range(60):
        collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)

    assert objects(tmp_path) & {*LAID[laid]} == STAYS.get(laid, set())
    assert objects(tmp_path, layout.packs_folder(NAMESPACE)) == {
        layout.pack_key(NAMESPACE, pack) for pack in kept.summary.packs
    }
    assert layout.removed_key(gone) in objects(tmp_path)
    assert max(backend.parts) <= 100
    assert store.verify(kept.ref).ok


def test_packs_that_are_needed_stay_though_they_are_more_than_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(PosixBackend(tmp_path))
    kept = [take(store, Identity(NAMESPACE, "job", index), {"core.img": b"%d" % index}) for index in range(100)]
    lay(tmp_path, *LAID["packs"][:50])
    monkeypatch.setattr(bounded_listing, "MOST_SAMPLED", 20)
    backend = PosixBackend(tmp_path)

    reports = [collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0) for _ in range(200)]

    assert not any(report.is_empty for report in reports)
    assert sum(report.removed_packs for report in reports) == 50
    assert all(store.verify(one.ref).ok for one in kept)


@pytest.mark.parametrize("shares", [1, 4])
def test_a_collector_that_has_seen_a_share_alone_does_not_call_the_namespace_empty(
    tmp_path: Path, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_listing, "MOST_SAMPLED", 100 // shares)
    lay(tmp_path, *LAID["packs"][:100])
    backend = PosixBackend(tmp_path)
    collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)
    assert collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0).is_empty == (shares == 1)


def test_more_snapshots_than_fit_memory_are_refused_in_words(tmp_path: Path) -> None:
    """Which packs they name nobody can say; what the dead left goes all the same."""
    take(SnapshotStore(PosixBackend(tmp_path)), Identity(NAMESPACE, "job"), {"core.img": b"x"})
    before = objects(tmp_path)
    manifests = [layout.manifest_key(SnapshotRef(Identity(NAMESPACE, "other"), number)) for number in range(1, 101)]
    lay(tmp_path, *manifests, *LAID["intents"])
    backend = PosixBackend(tmp_path)

    with pytest.raises(CrowdedNamespaceError) as caught:
        collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)

    assert caught.value.message == "namespace team-a has more than 100 snapshots in the store, more than fits memory"
    assert "v1/team-a/" in caught.value.remedy
    assert objects(tmp_path) == before | {*manifests}


def test_more_writers_at_work_than_fit_memory_hold_a_collection_until_they_are_dead(tmp_path: Path) -> None:
    lay(tmp_path, *LAID["packs"][:1])
    backend = PosixBackend(tmp_path)
    keys = LAID["intents"][:101]
    for key in keys:
        backend.put(key, b"x")
    with pytest.raises(CrowdedNamespaceError, match="more than 100 writers at work"):
        collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)
    for key in keys:
        age(tmp_path, key)
    assert collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0).condemned_packs == 1
    assert not objects(tmp_path, layout.intents_folder(NAMESPACE))


def test_a_commit_reads_the_intents_of_those_who_claim_the_same_alone(tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path)
    ref, mine, other = SnapshotRef(Identity(NAMESPACE, "job"), 1), "a" * 32, "b" * 32
    for key in LAID["intents"]:
        backend.put(key, b"x")
    backend.put(layout.claim_key(ref, other), b"")
    alive = msgspec.msgpack.encode(Intent(other, ref.identity))
    backend.put(f"{layout.intents_folder(NAMESPACE)}/{other}", alive)

    with pytest.raises(CommitConflictError):
        commit_manifest(backend, Catalogue(backend), ref, mine, b"manifest", conditional=False)


def lay_markers(folder: Path, number: int) -> None:
    """Whoever has a turn to collect the namespace may lay them; they sort before and after those of packs."""
    backend = PosixBackend(folder)
    for one in range(number):
        backend.put(f"{layout.condemned_folder(NAMESPACE)}/{'0f'[one % 2]}{one:031x}-000001", b"")


def test_a_writer_finds_the_markers_of_its_packs_among_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MARKERS_LISTED", 100)
    backend = Crowded(tmp_path, layout.condemned_folder(NAMESPACE))
    packs = [f"{number:032x}-000000" for number in range(200)]
    for pack in packs[:150]:
        backend.put(f"{layout.condemned_folder(NAMESPACE)}/{pack}", b"")
    assert condemned_packs(backend, NAMESPACE, packs[100:]) == set(packs[100:150])
    assert backend.listed <= 100
    assert condemned_packs(PosixBackend(tmp_path), NAMESPACE, packs[140:]) == set(packs[140:150])


def test_any_number_of_markers_keeps_nothing_from_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MARKERS_LISTED", 100)
    store = SnapshotStore(PosixBackend(tmp_path))
    first = take(store, Identity(NAMESPACE, "job"), {"core.img": b"x"})
    lay_markers(tmp_path, 201)
    second = take(store, first.ref.identity, {"core.img": b"x"})
    assert second.ref.generation == first.ref.generation + 1
    assert take(store, Identity(NAMESPACE, "other"), {"core.img": b"y"}).ref.generation == 1


def test_any_number_of_markers_keeps_nothing_from_being_collected(tmp_path: Path) -> None:
    backend = Counted(tmp_path)
    store = SnapshotStore(backend)
    kept = take(store, Identity(NAMESPACE, "kept"), {"core.img": b"x"})
    store.remove(take(store, Identity(NAMESPACE, "gone"), {"core.img": b"y"}).ref)
    lay_markers(tmp_path, 201)
    backend.parts.clear()

    first, second = (collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0) for _ in range(2))

    assert (first.condemned_packs, second.removed_packs) == (1, 1)
    assert max(backend.parts) <= 30
    assert not list(backend.list(layout.condemned_folder(NAMESPACE)))
    assert {one.key for one in backend.list(layout.packs_folder(NAMESPACE))} == {
        layout.pack_key(NAMESPACE, pack) for pack in kept.summary.packs
    }


def test_a_marker_in_a_folder_of_its_own_is_of_no_pack(tmp_path: Path) -> None:
    """Writers would not see it, so nothing is removed for it."""
    backend = PosixBackend(tmp_path)
    store = SnapshotStore(backend)
    gone = take(store, Identity(NAMESPACE, "gone"), {"core.img": b"y"})
    store.remove(gone.ref)
    for pack in gone.summary.packs:
        backend.put(f"{layout.condemned_folder(NAMESPACE)}/deeper/{pack}", b"")
    assert not condemned_packs(backend, NAMESPACE, gone.summary.packs)
    report = collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)
    assert (report.condemned_packs, report.removed_packs) == (1, 0)


def test_a_marker_that_is_newer_than_the_run_stays_though_its_pack_was_not_listed(tmp_path: Path) -> None:
    """Another run may have set it for a pack that came after this run had listed the packs."""
    late = f"{layout.condemned_folder(NAMESPACE)}/{1:032x}-000001"

    class Meanwhile(PosixBackend):
        def list(self, prefix: str) -> Iterator[Entry]:
            if prefix == layout.condemned_folder(NAMESPACE):
                self.put(late, b"")
            yield from super().list(prefix)

    backend = Meanwhile(tmp_path)
    take(SnapshotStore(backend), Identity(NAMESPACE, "job"), {"core.img": b"x"})
    collect_garbage(backend, Catalogue(backend), NAMESPACE, grace_seconds=0)
    assert backend.stat(late) is not None


def test_other_namespaces_are_collected(tmp_path: Path) -> None:
    store = SnapshotStore(PosixBackend(tmp_path))
    gone = take(store, Identity(OTHER, "job"), {"core.img": b"x"}).ref
    store.remove(gone)
    lay(tmp_path, *(layout.manifest_key(SnapshotRef(Identity(NAMESPACE, "job"), number)) for number in range(1, 102)))
    backend = PosixBackend(tmp_path)
    for _ in range(2):
        with pytest.raises(CrowdedNamespaceError, match=NAMESPACE):
            SnapshotStore(backend).collect_garbage(grace_seconds=0)
    assert not list(backend.list(layout.packs_folder(OTHER)))


def test_intents_are_read_as_far_as_they_fit_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES", 1000)
    backend = CountingBackend(tmp_path)
    for number in range(20):
        intent = Intent(f"{number:032x}", Identity(NAMESPACE, "job"), (f"{number:032x}-000001",))
        backend.put(f"{layout.intents_folder(NAMESPACE)}/{intent.writer}", msgspec.msgpack.encode(intent))
    with pytest.raises(CrowdedNamespaceError, match="has intents of more than 1,000 bytes"):
        collect_garbage(backend, Catalogue(backend), NAMESPACE)
    assert backend.bytes_read <= 1001


@pytest.mark.parametrize(
    ("module", "bound", "key"),
    [
        (references, "MOST_BYTES", layout.references_key(NAMESPACE)),
        (collection_turns, "_MOST_BYTES", layout.collector_key(NAMESPACE)),
    ],
)
def test_what_is_larger_than_anything_of_ours_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, bound: str, key: str
) -> None:
    take(SnapshotStore(PosixBackend(tmp_path)), Identity(NAMESPACE, "job"), {"core.img": b"x"})
    monkeypatch.setattr(module, bound, 1000)
    backend = CountingBackend(tmp_path)
    backend.put(key, bytes(100_000))
    backend.forget()

    turn = SnapshotStore(backend).collect_in_turn(NAMESPACE, 0)

    assert turn.report is not None
    assert turn.report.condemned_packs == 0
    assert backend.bytes_read < 20_000
