"""A workload beside whose snapshots somebody has laid any number of files: it is saved, continued and tidied up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedana_sched.model.errors import NotFoundError, StoreDeniedError
from cedana_sched.model.identity import LARGEST_GENERATION, Identity, SnapshotRef
from cedana_sched.model.policy import Retention
from cedana_sched.store import catalogue, generation_names, layout, manifest_format
from cedana_sched.store.backend import Entry
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.generation_names import newest_generations
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take

WORKLOAD = Identity("team-a", "md")
FOLDER = layout.identity_folder(WORKLOAD)
STREAMS = {"core.img": b"memory"}
MOST = 20


class Crowded(CountingBackend):
    """A store in whose `FOLDER` somebody has laid these files; they are no manifests."""

    def __init__(self, root: Path, *names: str) -> None:
        super().__init__(root)
        self._names = names

    def list(self, prefix: str) -> Iterator[Entry]:
        if prefix != FOLDER:
            return super().list(prefix)
        laid = (Entry(f"{FOLDER}/{name}", 8, 0.0) for name in self._names)
        return iter([*super().list(prefix), *laid])

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key.rpartition("/")[2] in self._names:
            self._read("get_range", key, 8)
            return b"no more."
        return super().get_range(key, offset, length)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_names, "MOST_GENERATIONS", MOST)


def manifests(first: int, count: int) -> list[str]:
    return [f"{number:010d}.manifest" for number in range(first, first + count)]


def crowded(folder: Path, *names: str) -> tuple[SnapshotStore, Crowded]:
    """With one snapshot, of number 1, before they were laid."""
    take(SnapshotStore(CountingBackend(folder)), WORKLOAD, STREAMS, "first")
    backend = Crowded(folder, *names)
    return SnapshotStore(backend), backend


def test_of_any_number_of_manifests_the_newest_are_read_before_a_dump(tmp_path: Path) -> None:
    store, backend = crowded(tmp_path, *manifests(2, 1000))
    with capture_logs() as told:
        written = take(store, WORKLOAD, STREAMS)
    assert written.ref.generation == 1002
    assert len({key for key in backend.keys_read if key.startswith(FOLDER)}) <= 2 * MOST + 1
    line = next(one for one in told if one["event"] == "generations_passed_over")
    assert line["identity"] == str(WORKLOAD)
    assert line["remedy"] == f"remove foreign objects below {FOLDER}/, and find out who could write them there"


def test_no_more_of_them_are_held_than_fit_memory() -> None:
    def listed() -> Iterator[Entry]:
        for number in range(1, 5001):
            yield Entry(f"{FOLDER}/{number:010d}.manifest", 8, 0.0)
            yield Entry(f"{FOLDER}/{number:010d}.removed", 0, 0.0)

    found = newest_generations(WORKLOAD, listed)
    assert not found.committed
    assert len(found.removed) <= 4 * MOST
    assert found.next_number(WORKLOAD) == 5001


@pytest.mark.parametrize("writer", ["", f".{'a' * 32}"])
def test_what_is_removed_stays_removed_behind_any_number_of_others(writer: str) -> None:
    """Markers that are passed over count all the same for the manifests that are kept."""
    names = [f"{1:010d}{writer}.manifest", f"{1:010d}.removed", f"{2:010d}{writer}.manifest"]
    names += [f"{number:010d}.removed" for number in range(3, 1000)]
    found = newest_generations(WORKLOAD, lambda: (Entry(f"{FOLDER}/{name}", 8, 0.0) for name in names))
    assert [ref.generation for ref in found.committed] == [2]
    assert found.next_number(WORKLOAD) == 1000


def test_a_snapshot_that_is_named_is_found_among_any_number(tmp_path: Path) -> None:
    store, _ = crowded(tmp_path, *manifests(2, 1000))
    first = SnapshotRef(WORKLOAD, 1)
    assert store.open_snapshot(first).read("core.img") == b"memory"
    with pytest.raises(NotFoundError):
        store.open_snapshot(SnapshotRef(WORKLOAD, 5000))
    store.remove(first)
    with pytest.raises(NotFoundError):
        store.open_snapshot(first)


def test_what_a_checkpoint_has_committed_is_found_after_few_reads(tmp_path: Path) -> None:
    store, backend = crowded(tmp_path, *manifests(2, 10))
    take(store, WORKLOAD, STREAMS, "second")
    backend.forget()
    found = store.find_committed(WORKLOAD, "second")
    assert found is not None
    assert found.ref.generation == 12
    assert backend.reads <= 2 * catalogue._READERS


def test_long_headers_are_read_as_far_as_they_fit_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CountingBackend(tmp_path)
    store = SnapshotStore(backend)
    for _ in range(20):
        take(store, WORKLOAD, STREAMS)
    monkeypatch.setattr(manifest_format, "HEAD_BYTES", manifest_format.PREAMBLE_BYTES)
    monkeypatch.setattr(catalogue, "MOST_LONG_BYTES", 500)
    monkeypatch.setattr(catalogue, "MOST_REMEMBERED_BYTES", 1000)
    monkeypatch.setattr(catalogue, "_READERS", 2)
    fresh = Catalogue(backend)

    found = [one.ref.generation for one in fresh.newest_readable_summaries(fresh.newest_generations_of(WORKLOAD))]

    assert found == list(range(20, 20 - len(found), -1))
    assert 1 <= len(found) < 4
    assert len(fresh.readable_summaries(fresh.newest_generations_of(WORKLOAD))) == 20
    assert sum(read.length for read in fresh._summaries.values()) <= 1000


class Together(CountingBackend):
    """A store that answers two who read at once at the same moment."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meeting = threading.Barrier(2, timeout=60)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.meeting.wait()
        return super().get_range(key, offset, length)


def test_a_header_that_two_have_read_at_once_counts_once(tmp_path: Path) -> None:
    take(SnapshotStore(CountingBackend(tmp_path)), WORKLOAD, STREAMS)
    fresh = Catalogue(Together(tmp_path))
    found = fresh.newest_generations_of(WORKLOAD)
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(fresh.readable_summaries, found) for _ in range(2)]
    assert read[0].result() == read[1].result()
    assert fresh._remembered_bytes == sum(read.length for read in fresh._summaries.values())


def test_retention_removes_what_can_be_read_and_leaves_the_rest(tmp_path: Path) -> None:
    store, _ = crowded(tmp_path, *manifests(2, 5))
    last = [take(store, WORKLOAD, STREAMS).ref for _ in range(2)][-1]
    assert [ref.generation for ref in store.apply_retention(WORKLOAD, Retention(keep_last=1))] == [1, 7]
    latest = store.latest_snapshot_of(WORKLOAD)
    assert latest is not None
    assert latest.ref == last


@pytest.mark.parametrize("kind", ["manifest", "removed"])
def test_behind_the_last_number_nothing_is_written(tmp_path: Path, kind: str) -> None:
    """No name says a greater one: a snapshot of it would be lost when it is committed."""
    name = f"{LARGEST_GENERATION:010d}.{kind}"
    store, backend = crowded(tmp_path, name)
    before = {entry.key for entry in backend.list(layout.ROOT)}
    with pytest.raises(StoreDeniedError, match="has a generation 9999999999, and none can come after it") as caught:
        take(store, WORKLOAD, STREAMS)
    assert FOLDER in caught.value.remedy
    assert {entry.key for entry in backend.list(layout.ROOT)} == before
