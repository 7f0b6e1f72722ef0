"""Whoever can write to a folder that is a store makes links there, and leads nobody out of it by them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.model.errors import StoreDeniedError, StoreError
from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.link_safe_folders import DEEPEST
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.store_presence import NAME
from tests.servers.snapshots import take

SECRET = b"what only root of this machine reads"
FOLDER = layout.packs_folder("team-a")
KEY = layout.pack_key("team-a", "ab-1")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the machine beside the store, with a file of its own."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "ab-1").write_bytes(SECRET)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> PosixBackend:
    backend = PosixBackend(tmp_path / "store")
    backend.put(KEY, b"a pack")
    return backend


def link_file(store: PosixBackend, host: Path) -> None:
    (store.root / KEY).unlink()
    (store.root / KEY).symlink_to(host / "ab-1")


def link_folder(store: PosixBackend, host: Path) -> None:
    (store.root / FOLDER).rename(store.root / "elsewhere")
    (store.root / FOLDER).symlink_to(host)


def link_namespace(store: PosixBackend, host: Path) -> None:
    (store.root / "v1/team-a").rename(store.root / "elsewhere")
    (host / "packs").mkdir()
    (host / "ab-1").rename(host / "packs/ab-1")
    (store.root / "v1/team-a").symlink_to(host)


LINKS = pytest.mark.parametrize("link", [link_file, link_folder, link_namespace])
CALLS: dict[str, Callable[[Backend], object]] = {
    "get": lambda backend: backend.get(KEY, at_most=100),
    "get_range": lambda backend: backend.get_range(KEY, 0, 100),
    "stat": lambda backend: backend.stat(KEY),
    "list": lambda backend: list(backend.list(FOLDER)),
    "folders": lambda backend: backend.folder_names(FOLDER),
    "put": lambda backend: backend.put(KEY, b"ours"),
    "put_if_absent": lambda backend: backend.put_if_absent(KEY, b"ours"),
    "sink": lambda backend: written(backend, KEY),
    "delete": lambda backend: backend.delete([KEY]),
    "sweep": lambda backend: backend.sweep_partial(FOLDER, -1.0, lambda _: False),
}


def written(backend: Backend, key: str) -> None:
    sink = backend.open_sink(key)
    sink.write(b"ours")
    sink.finish()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@LINKS
@pytest.mark.parametrize("call", CALLS)
def test_no_call_reads_or_writes_where_a_link_leads(
    store: PosixBackend, host: Path, link: Callable[[PosixBackend, Path], None], call: str
) -> None:
    link(store, host)
    (host / ".partial-0123456789ab-x").write_bytes(b"theirs")
    before = files(host)
    try:
        said = repr(CALLS[call](PosixBackend(store.root)))
    except StoreError as error:
        said = str(error)
    assert files(host) == before
    assert SECRET.decode() not in said
    assert f"size={len(SECRET)}" not in said


def test_a_folder_that_became_a_link_while_the_store_is_used_is_not_followed(store: PosixBackend, host: Path) -> None:
    sink = store.open_sink(KEY)
    sink.write(b"ours")
    link_folder(store, host)
    before = files(host)
    for call in (sink.finish, lambda: store.put(KEY, b"ours")):
        try:
            call()
        except StoreError:
            continue
    assert files(host) == before


def test_a_link_is_named_as_what_it_is(store: PosixBackend, host: Path) -> None:
    link_folder(store, host)
    with pytest.raises(StoreDeniedError, match="a link is in its place or on the way") as caught:
        store.get(KEY, at_most=100)
    assert "who can write there" in caught.value.remedy


def test_a_collection_removes_no_file_of_the_machine(tmp_path: Path, host: Path) -> None:
    store = SnapshotStore(PosixBackend(tmp_path / "store"))
    take(store, Identity("team-a", "md"), {"core.img": b"memory"})
    (tmp_path / "store" / FOLDER).rename(tmp_path / "elsewhere")
    (tmp_path / "store" / FOLDER).symlink_to(host)
    for _ in range(2):  # the first one marks packs, the second one removes them
        try:
            store.collect_garbage("team-a", grace_seconds=0)
        except StoreError:
            continue
    assert files(host) == {"ab-1": SECRET}


@pytest.mark.parametrize("call", [lambda one: one.get(KEY, at_most=100), lambda one: one.get_range(KEY, 0, 9)])
def test_a_pipe_holds_nobody_up(store: PosixBackend, call: Callable[[Backend], object]) -> None:
    (store.root / KEY).unlink()
    os.mkfifo(store.root / KEY)

    def ask() -> None:
        with pytest.raises(StoreDeniedError, match="no regular file"):
            call(store)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(20)
    assert not asking.is_alive(), "it waits for somebody who writes into it"


def test_the_mark_may_be_no_link(tmp_path: Path, store: PosixBackend, host: Path) -> None:
    (store.root / NAME).unlink()
    (store.root / NAME).symlink_to(host / "ab-1")
    notes = tmp_path / "notes"
    with pytest.raises(StoreError):
        PosixBackend(store.root, notes).put(KEY, b"ours")
    assert not notes.exists()


def test_folders_of_any_depth_end_a_listing_and_not_its_process(store: PosixBackend) -> None:
    deep = store.root / FOLDER
    for _ in range(3 * DEEPEST):
        deep = deep / "x"
        deep.mkdir()
        (deep / "file").touch()
    found = [entry.key for entry in store.list(FOLDER)]
    assert KEY in found
    assert len(found) <= DEEPEST + 1


def test_the_root_itself_may_be_a_link_of_the_admins(tmp_path: Path, store: PosixBackend) -> None:
    (tmp_path / "link").symlink_to(store.root)
    assert PosixBackend(tmp_path / "link").get(KEY, at_most=100) == b"a pack"
