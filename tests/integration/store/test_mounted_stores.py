"""A store whose mount is away is away: it is never taken for an empty one, and nothing is written in its place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.store_presence import NAME
from tests.leftovers import mounts_below
from tests.servers.snapshots import take

MD = Identity("bio", "md")
AWAY = r"the store at .*/mnt is not mounted"


class Volume:
    """A real mount of a folder that holds a store, as an NFS export would be mounted."""

    def __init__(self, folder: Path) -> None:
        self.exported, self.point, self.notes = folder / "export", folder / "mnt", folder / "state/stores"
        for one in (self.exported, self.point):
            one.mkdir()

    def mount(self) -> None:
        subprocess.run(["mount", "--bind", self.exported, self.point], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.point], check=True)

    def open(self, *, noted: bool = True) -> SnapshotStore:
        """As an engine or an agent that starts now."""
        return SnapshotStore.open(StorageConfig(path=self.point), notes=self.notes if noted else None)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    volume = Volume(tmp_path)
    volume.mount()
    yield volume
    if mounts_below(volume.point):
        volume.unmount()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_mount_that_goes_is_no_empty_store(volume: Volume, restarted: bool) -> None:
    store = volume.open()
    assert store.latest_snapshot_of(MD) is None, "at first there is nothing, and that is no fault"
    manifest = take(store, MD, {"core.img": b"1"})
    volume.unmount()
    if restarted:
        store = volume.open()
    for ask in (
        lambda: store.latest_snapshot_of(MD),
        store.list,
        lambda: store.list("bio"),
        lambda: store.open_snapshot(manifest.ref),
        lambda: store.find_committed(MD, "c1"),
        lambda: take(store, MD, {"core.img": b"2"}),
        store.check_storage,
    ):
        with pytest.raises(StoreUnavailableError, match=AWAY if restarted else rf"{AWAY}|vanished"):
            ask()
    assert list(volume.point.iterdir()) == [], "nothing is written in its place"
    volume.mount()
    newest = store.latest_snapshot_of(MD)
    assert newest is not None
    assert newest.ref == manifest.ref
    assert take(store, MD, {"core.img": b"2"}).ref == SnapshotRef(MD, 2)


def test_a_pack_that_is_away_with_its_mount_is_no_damage(volume: Volume) -> None:
    (pack,) = take(volume.open(), MD, {"core.img": b"1" * 100_000}).summary.packs
    key = layout.pack_key("bio", pack)
    backend = open_backend(StorageConfig(path=volume.point), volume.notes)
    assert backend.stat(key) is not None
    volume.unmount()
    for ask in (
        lambda: backend.get_range(key, 0, 10),
        lambda: backend.get(key, at_most=100),
        lambda: backend.stat(key),
    ):
        with pytest.raises(StoreUnavailableError, match=AWAY):
            ask()


def test_a_store_of_before_the_mark_gets_one(volume: Volume) -> None:
    take(volume.open(noted=False), MD, {"core.img": b"1"})
    (volume.exported / NAME).unlink()
    assert volume.open().latest_snapshot_of(MD) is not None
    assert (volume.exported / NAME).exists()
    volume.unmount()
    with pytest.raises(StoreUnavailableError, match=AWAY):
        volume.open().latest_snapshot_of(MD)


def test_a_person_begins_anew_by_removing_the_note(volume: Volume) -> None:
    take(volume.open(), MD, {"core.img": b"1"})
    volume.unmount()
    with pytest.raises(StoreUnavailableError) as caught:
        volume.open().latest_snapshot_of(MD)
    (note,) = volume.notes.iterdir()
    assert str(note) in caught.value.remedy
    note.unlink()
    assert take(volume.open(), MD, {"core.img": b"1"}).ref == SnapshotRef(MD, 1)


def test_what_another_process_of_this_machine_has_written_was_seen(volume: Volume) -> None:
    store = volume.open()
    take(volume.open(), MD, {"core.img": b"1"})
    volume.unmount()
    with pytest.raises(StoreUnavailableError, match=AWAY):
        store.latest_snapshot_of(MD)


def test_a_node_that_never_saw_the_store_does_not_take_an_empty_folder_for_it(volume: Volume) -> None:
    volume.unmount()
    store = volume.open()
    assert store.latest_snapshot_of(MD) is None, "a first job, on a machine of its own"
    with pytest.raises(StoreUnavailableError, match=AWAY):
        store.require_store_exists()
    volume.mount()
    take(volume.open(noted=False), MD, {"core.img": b"1"})
    store.require_store_exists()
    assert store.latest_snapshot_of(MD) is not None


def test_two_that_write_first_agree_on_one_mark(volume: Volume) -> None:
    stores = [volume.open(noted=False) for _ in range(2)]
    for number, store in enumerate(stores):
        take(store, Identity("bio", f"md-{number}"), {"core.img": b"1"})
    assert [path.name for path in volume.exported.iterdir() if path.name.startswith(NAME)] == [NAME]
