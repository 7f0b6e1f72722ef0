"""Of many nodes one collects a namespace, not too often, and reads only the manifests that are new."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.store import collection_turns, layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.collection_turns import RUN_SECONDS, collect_if_due
from cedana_sched.store.garbage import GarbageReport, collect_garbage
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.simulated import SimulatedBackend
from tests.servers.snapshots import take

NAMESPACE = "team-a"
RAN = GarbageReport(NAMESPACE)


def filled(folder: Path, replicas: int) -> CountingBackend:
    store = SnapshotStore(CountingBackend(folder))
    for index in range(replicas):
        take(store, Identity(NAMESPACE, "job", index), {"pages-1.img": bytes(range(256)) * 320})
    return CountingBackend(folder)


def collect(backend: CountingBackend) -> GarbageReport:
    """As a process does that has read nothing yet."""
    backend.forget()
    return collect_garbage(backend, Catalogue(backend), NAMESPACE)


def test_a_collection_reads_the_manifests_that_no_earlier_one_has_read(tmp_path: Path) -> None:
    backend = filled(tmp_path, 40)
    collect(backend)
    assert backend.reads == 40
    take(SnapshotStore(CountingBackend(tmp_path)), Identity(NAMESPACE, "job", 40), {"core.img": b"x"})

    collect(backend)

    assert min(backend.keys_read) == layout.references_key(NAMESPACE)
    assert [key for key in backend.keys_read if "/snapshots/" in key] == [
        f"{layout.snapshots_folder(NAMESPACE)}/job/40/main/0000000001.manifest"
    ]


def test_a_collection_lists_packs_and_pages_once(tmp_path: Path) -> None:
    """Manifests three times, as they are few: which there are, which of them are removed, and what has served."""
    backend = filled(tmp_path, 10)
    listed = [
        sum(1 for _ in backend.list(folder(NAMESPACE)))
        for folder in (layout.packs_folder, layout.pages_folder, layout.snapshots_folder)
    ]

    collect(backend)

    assert listed == [10, 10, 10]
    assert backend.keys_listed == 10 + 10 + 3 * 10


def test_what_is_remembered_protects_its_packs(tmp_path: Path) -> None:
    store = SnapshotStore(CountingBackend(tmp_path))
    manifest = take(store, Identity(NAMESPACE, "job"), {"pages-1.img": bytes(range(256)) * 320})
    for _ in range(4):
        (report,) = SnapshotStore(CountingBackend(tmp_path)).collect_garbage(NAMESPACE, grace_seconds=0)
        assert (report.condemned_packs, report.removed_packs) == (0, 0)
    assert store.verify(manifest.ref).ok

    store.remove(manifest.ref)
    reports = [
        SnapshotStore(CountingBackend(tmp_path)).collect_garbage(NAMESPACE, grace_seconds=0)[0] for _ in range(2)
    ]

    assert [report.removed_packs for report in reports] == [0, 1]
    assert list(CountingBackend(tmp_path).list(layout.packs_folder(NAMESPACE))) == []


@pytest.mark.parametrize("moments", [{"running_since": 1e12}, {"running_since": None, "ended": 1e12}])
def test_a_turn_of_the_future_is_nobodys(tmp_path: Path, moments: dict[str, float | None]) -> None:
    """One bit of a time that is stored makes it so; nothing would be collected any more, and the store fill up."""
    backend = filled(tmp_path, 1)
    backend.put(layout.collector_key(NAMESPACE), msgspec.msgpack.encode({"collector": "x", "began": 1.0, **moments}))
    assert collect_if_due(backend, NAMESPACE, 300.0, lambda: RAN).report is RAN


@pytest.mark.parametrize("spoilt", [b"", b"damaged", bytes(100)])
def test_damaged_references_are_read_anew_and_lose_nothing(tmp_path: Path, spoilt: bytes) -> None:
    backend = filled(tmp_path, 3)
    collect(backend)
    backend.put(layout.references_key(NAMESPACE), spoilt)

    report = collect(backend)

    assert backend.reads == 1 + 3
    assert report.condemned_packs == 0


class Nodes:
    """Nodes that take turns over one simulated store."""

    def __init__(self) -> None:
        self.backend = SimulatedBackend()
        self.ran = 0

    def take(self, every_seconds: float = 300.0) -> collection_turns.TurnResult:
        return collect_if_due(self.backend, NAMESPACE, every_seconds, self.run)

    def run(self) -> GarbageReport:
        self.ran += 1
        self.backend.time += 10
        return RAN


def test_of_a_thousand_nodes_one_collects_in_each_interval() -> None:
    nodes = Nodes()
    for _ in range(1000):
        nodes.take()
        nodes.backend.time += 0.1

    assert nodes.ran == 1
    nodes.backend.time += 300
    nodes.take()
    assert nodes.ran == 2


def test_who_does_not_collect_is_told_of_the_run_that_counts() -> None:
    nodes = Nodes()
    first = nodes.take()
    assert first.report == RAN
    nodes.backend.time += 60

    second = nodes.take()

    assert second.report is None
    assert second.last is not None
    assert (second.last.began_ago, second.last.ended_ago) == (70, 60)


def test_nobody_begins_while_another_collects_and_one_that_died_is_passed_over() -> None:
    nodes = Nodes()

    class Killed(BaseException):
        pass

    def dies() -> GarbageReport:
        nodes.backend.put = lambda *_: None  # type: ignore[method-assign]
        raise Killed

    with pytest.raises(Killed):
        collect_if_due(nodes.backend, NAMESPACE, 300.0, dies)
    del nodes.backend.put
    assert nodes.take() == collection_turns.TurnResult(None, None)
    nodes.backend.time += RUN_SECONDS
    assert nodes.take().report == RAN


def test_a_run_that_failed_may_be_made_at_once_by_another() -> None:
    nodes = Nodes()

    def fails() -> GarbageReport:
        raise StoreUnavailableError("no good answer came")

    with pytest.raises(StoreUnavailableError):
        collect_if_due(nodes.backend, NAMESPACE, 300.0, fails)

    assert nodes.take().report == RAN


def test_two_that_begin_at_the_same_moment_do_not_both_collect() -> None:
    nodes = Nodes()
    both = threading.Barrier(2)
    put = nodes.backend.put
    ran: list[int] = []

    def put_together(key: str, data: bytes) -> None:
        """Both have seen that nobody collects, and both have written, before either goes on."""
        if ran:
            put(key, data)
            return
        both.wait(60)
        put(key, data)
        both.wait(60)

    nodes.backend.put = put_together  # type: ignore[method-assign,assignment]

    def run() -> GarbageReport:
        ran.append(1)
        return RAN

    threads = [threading.Thread(target=collect_if_due, args=(nodes.backend, NAMESPACE, 300.0, run)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ran) == 1


def test_an_empty_namespace_keeps_nothing_of_its_collections(tmp_path: Path) -> None:
    store = SnapshotStore(CountingBackend(tmp_path))

    assert store.collect_in_turn(NAMESPACE, 300.0).report is not None

    assert list(CountingBackend(tmp_path).list(layout.ROOT)) == []
