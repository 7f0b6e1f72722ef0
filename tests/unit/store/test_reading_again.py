"""A store that fails for a moment while a snapshot is read: it is read again, and only what stays wrong is damage."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from cedana_sched.model.errors import IntegrityError, StoreDeniedError, StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout, reader
from cedana_sched.store.backend import MissingObjectError
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.snapshots import take

WORKLOAD = Identity("team-a", "gromacs")
MEMORY = random.Random(1).randbytes(3 << 20)


class Faulty(PosixBackend):
    """The first `times` reads of each object in `folder` (packs, snapshots) fail or are spoilt."""

    def __init__(self, root: Path, folder: str, fault: Exception | str, times: int) -> None:
        super().__init__(root)
        self._folder = f"/{folder}/"
        self._fault = fault
        self._times = times
        self.reads: Counter[str] = Counter()

    def get(self, key: str, *, at_most: int) -> bytes:
        return self._spoilt(key, super().get(key, at_most=at_most))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._spoilt(f"{key}@{offset}", super().get_range(key, offset, length))

    def _spoilt(self, what: str, data: bytes) -> bytes:
        self.reads[what] += 1
        if self._folder not in what or self.reads[what] > self._times:
            return data
        if isinstance(self._fault, Exception):
            raise self._fault
        return data[:-1] if self._fault == "cut off" else bytes(len(data))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    store = SnapshotStore(PosixBackend(tmp_path / "store"))
    take(store, WORKLOAD, {"pages-1.img": MEMORY, "core.img": b"small"})
    (tmp_path / "staged").mkdir()
    return tmp_path


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(reader, "pause", made.append)
    return made


def stage(place: Path, backend: PosixBackend) -> bytes:
    SnapshotStore(backend).open_snapshot(SnapshotRef(WORKLOAD, 1)).stage(place / "staged")
    return (place / "staged" / "pages-1.img").read_bytes()


def test_an_outage_pauses_a_restore_and_throws_nothing_away(place: Path, pauses: list[float]) -> None:
    backend = Faulty(place / "store", "packs", StoreUnavailableError("no good answer came"), times=5)

    assert stage(place, backend) == MEMORY

    assert all(reads == 6 for what, reads in backend.reads.items() if "/packs/" in what)
    assert len(pauses) >= 5
    assert max(pauses) <= 10


def test_an_outage_that_lasts_is_an_error_that_may_be_tried_again(
    place: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PATIENCE_SECONDS", 0.0)
    backend = Faulty(place / "store", "packs", StoreUnavailableError("no good answer came"), times=10**9)

    with pytest.raises(StoreUnavailableError, match="no good answer came"):
        stage(place, backend)
    assert pauses == []


@pytest.mark.usefixtures("pauses")
def test_a_refusal_is_not_repeated(place: Path) -> None:
    backend = Faulty(place / "store", "packs", StoreDeniedError("the server refuses these keys"), times=10**9)

    with pytest.raises(StoreDeniedError):
        stage(place, backend)
    assert all(reads == 1 for what, reads in backend.reads.items() if "/packs/" in what)


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("packs", "other bytes"),
        ("packs", "cut off"),
        ("packs", MissingObjectError("not there")),
        ("snapshots", "other bytes"),
        ("snapshots", "cut off"),
    ],
    ids=str,
)
def test_bytes_that_are_wrong_once_are_no_damage(place: Path, folder: str, fault: Exception | str) -> None:
    backend = Faulty(place / "store", folder, fault, times=1)

    assert stage(place, backend) == MEMORY
    found = SnapshotStore(Faulty(place / "store", folder, fault, times=1)).latest_snapshot_of(WORKLOAD)
    assert found is not None


@pytest.mark.parametrize("fault", ["other bytes", "cut off", MissingObjectError("not there")], ids=str)
def test_bytes_that_stay_wrong_are_read_twice_and_named(place: Path, fault: Exception | str) -> None:
    backend = Faulty(place / "store", "packs", fault, times=10**9)

    with pytest.raises(IntegrityError, match=r"chunk \d .* is damaged"):
        stage(place, backend)
    (reads,) = [reads for what, reads in backend.reads.items() if "/packs/" in what and what.endswith("@0")]
    assert reads == 2


def test_verification_reads_what_is_wrong_twice(place: Path) -> None:
    (key,) = [entry.key for entry in PosixBackend(place / "store").list(layout.packs_folder("team-a"))]
    backend = Faulty(place / "store", "packs", "other bytes", times=1)

    assert SnapshotStore(backend).verify(SnapshotRef(WORKLOAD, 1)).ok
    assert backend.reads[f"{key}@0"] == 2
