"""Whoever will write into a store has the keys that seal it, or is refused before anything depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.model.errors import SealedError
from cedana_sched.model.identity import Identity
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import take

STREAMS = {"core.img": b"memory"}
NAMESPACES = ("team-a", "team-b")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return new_keys(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_store_that_is_not_sealed_needs_none_and_stays_as_it_is(folder: Path) -> None:
    store = sealed_store(folder, None)
    store.require_keys(NAMESPACES)
    assert files(folder) == []
    take(store, Identity("team-a", "md"), STREAMS)
    store.require_keys(NAMESPACES)


def test_a_store_is_sealed_before_its_first_snapshot(folder: Path, keys: Path) -> None:
    for _ in range(2):
        sealed_store(folder, keys).require_keys(NAMESPACES)
    with pytest.raises(SealedError, match=r"none is given, and namespace team-a .*--key-file"):
        sealed_store(folder, None).require_keys(NAMESPACES)
    assert len([path for path in files(folder) if path.parent.name == "keys"]) == len(NAMESPACES)


def test_without_keys_a_store_is_refused_whichever_of_its_namespaces_is_sealed(folder: Path, keys: Path) -> None:
    take(sealed_store(folder, keys), Identity("team-c", "md"), STREAMS)
    with pytest.raises(SealedError, match=r"namespace team-c of the folder "):
        sealed_store(folder, None).require_keys(NAMESPACES)


def test_without_keys_a_store_with_both_kinds_is_refused(folder: Path, keys: Path) -> None:
    take(sealed_store(folder, None), Identity("team-a", "md"), STREAMS)
    take(sealed_store(folder, keys), Identity("team-a", "other"), STREAMS)
    with pytest.raises(SealedError, match="namespace team-a"):
        sealed_store(folder, None).require_keys(NAMESPACES)
    for accepts in (True, False):
        sealed_store(folder, keys, accepts_unsealed=accepts).require_keys(NAMESPACES)


def test_other_keys_are_refused_where_they_would_have_to_write(folder: Path, tmp_path: Path, keys: Path) -> None:
    take(sealed_store(folder, keys), Identity("team-b", "md"), STREAMS)
    theirs = sealed_store(folder, new_keys(tmp_path, "theirs"))
    with pytest.raises(SealedError, match=r"theirs' has .*, and not .*, with which namespace team-b is sealed"):
        theirs.require_keys(NAMESPACES)
    theirs.require_keys(["team-a"])


def test_a_store_whose_namespaces_were_erased_needs_none(folder: Path, keys: Path) -> None:
    take(sealed_store(folder, keys), Identity("team-a", "md"), STREAMS)
    store = sealed_store(folder, None)
    store.erase_sealed_snapshots("team-a")
    store.require_keys(NAMESPACES)


def test_who_seals_nothing_yet_leaves_the_store_open_to_those_without_keys(folder: Path, keys: Path) -> None:
    sealed_store(folder, keys, writes_unsealed=True).require_keys(NAMESPACES)
    assert files(folder) == []
