"""One byte of whatever object of a sealed store is changed: nothing wrong comes back, nobody else loses anything."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.intents import Intent
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.store_presence import NAME
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import take

OURS, THEIRS = Identity("team-a", "gromacs"), Identity("team-b", "gromacs")
RANDOM = random.Random(1)
MEMORY = RANDOM.randbytes(70_000)
MEMORIES = {number: RANDOM.randbytes(4096 * number) + MEMORY for number in (1, 2, 3)}
"""Of each generation; the first one is removed again."""
CHANGES = {
    "packs": 4,
    "snapshots": 5,
    "pages": 3,
    "keys": 5,
    "intents": 4,
    "condemned": 1,
    "references": 5,
    "collector": 5,
}
"""How many bytes are changed of each object of a kind, one after the other."""
UNCHANGING = {"packs", "snapshots", "keys"}
"""What is written once."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sealed store of two namespaces with objects of every kind, not to be changed; and its keys."""
    folder = tmp_path_factory.mktemp("sound")
    keys, place = new_keys(folder), folder / "store"
    for identity in (OURS, THEIRS):
        for memory in MEMORIES.values():
            take(sealed_store(place, keys), identity, {"pages-1.img": memory})
        sealed_store(place, keys).remove(SnapshotRef(identity, 1))
        sealed_store(place, keys).collect_in_turn(identity.namespace, 0)
    backend, namespace = PosixBackend(place), OURS.namespace
    [pack, *_] = [entry.key.rpartition("/")[2] for entry in backend.list(layout.packs_folder(namespace))]
    at_work = msgspec.msgpack.encode(Intent("a" * 32, OURS, (pack,)))
    backend.put(f"{layout.intents_folder(namespace)}/{'a' * 32}", at_work)
    backend.put(f"{layout.condemned_folder(namespace)}/{pack}", b"")
    return place, keys


def objects(place: Path, kind: str) -> list[Path]:
    root = place / layout.namespace_folder(OURS.namespace) / kind
    found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    assert found, kind
    return found


def test_the_store_of_these_tests_has_objects_of_every_kind_and_no_other(sound: tuple[Path, Path]) -> None:
    place, _ = sound
    there = {path.name for path in (place / layout.namespace_folder(OURS.namespace)).iterdir()}
    assert there == CHANGES.keys()
    assert {path.name.rpartition(".")[2] for path in objects(place, "snapshots")} == {"manifest", "removed"}
    assert {path.name for path in place.iterdir()} - {"probe"} == {layout.ROOT, NAME}


@pytest.mark.parametrize("kind", CHANGES)
def test_nothing_wrong_comes_back_and_nobody_else_loses_anything(
    sound: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    place, keys = sound
    chosen = random.Random(kind)
    for path in objects(place, kind):
        for number in range(CHANGES[kind]):
            changed = tmp_path / f"{path.name}-{number}"
            shutil.copytree(place, changed)
            spoilt = changed / path.relative_to(place)
            spoil(spoilt, chosen)
            look_at(changed, keys)
            if kind in UNCHANGING and path.suffix != ".removed":  # what is whole again is there again
                assert spoilt.exists()
                spoilt.write_bytes(path.read_bytes())
                look_at(changed, keys, all_of_ours=True)
            shutil.rmtree(changed)


def test_a_changed_mark_of_the_store_loses_nothing(sound: tuple[Path, Path], tmp_path: Path) -> None:
    place, keys = sound
    for number in range(3):
        changed = tmp_path / str(number)
        shutil.copytree(place, changed)
        spoil(changed / NAME, random.Random(number))
        look_at(changed, keys)


def spoil(path: Path, chosen: random.Random) -> None:
    """Change a bit of a byte; an empty object gets one."""
    content = bytearray(path.read_bytes())
    if content:
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content or b"x")


def look_at(place: Path, keys: Path, *, all_of_ours: bool = False) -> None:
    """Whatever others do now with the store: they read, save and collect."""
    refs = [SnapshotRef(OURS, generation) for generation in MEMORIES if generation > 1]
    before = {ref: came_back(sealed_store(place, keys), ref) for ref in refs}
    allowed = () if all_of_ours else (None,)
    assert all(memory in (*allowed, MEMORIES[ref.generation]) for ref, memory in before.items())
    try:
        saved = take(sealed_store(place, keys), OURS, {"pages-1.img": MEMORY[::-1] + MEMORY}).ref
    except CedanaSchedError:
        saved = None
    if saved is not None:
        assert saved.generation > max(MEMORIES)
        assert came_back(sealed_store(place, keys), saved) == MEMORY[::-1] + MEMORY
    for _ in range(2):
        for one in (OURS, THEIRS):
            sealed_store(place, keys).collect_garbage(one.namespace, grace_seconds=0)
    for ref, memory in before.items():
        assert came_back(sealed_store(place, keys), ref) == memory, "collections take nothing that was there"
    for generation, memory in MEMORIES.items():
        theirs = came_back(sealed_store(place, keys), SnapshotRef(THEIRS, generation))
        assert theirs == (memory if generation > 1 else None)


def came_back(store: SnapshotStore, ref: SnapshotRef) -> bytes | None:
    """The memory of a snapshot; None where it is refused in words."""
    try:
        return bytes(store.open_snapshot(ref).read("pages-1.img"))
    except CedanaSchedError:
        return None
