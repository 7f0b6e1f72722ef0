"""A sealed store: who has the keys reads what was written, and nobody else reads or writes anything that counts."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import (
    CedanaSchedError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    SealedError,
    UnsealedError,
)
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import Chunks, Manifest
from cedana_sched.store import layout
from cedana_sched.store.compression import RAW
from cedana_sched.store.manifest_format import decode_manifest, encode_manifest
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.sealing import key_file
from cedana_sched.store.sealing.aead import CountedKey, derive_key, encode_context
from cedana_sched.store.sealing.data_keys import DataKeys
from cedana_sched.store.sealing.sealed_manifest_format import seal_manifest
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import metadata, take

WORKLOAD = Identity("team-a", "gromacs")
THEIRS = Identity("team-b", "gromacs")
WORD = b"the word that nobody must read."
MEMORY = WORD * 10_000 + random.Random(1).randbytes(1 << 20)
STREAMS = {"pages-1.img": MEMORY, "core.img": WORD}
SMALL = {"pages-1.img": MEMORY[:70_000], "core.img": WORD}
REFUSED = (IntegrityError, SealedError, UnsealedError, IncompatibleError)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return new_keys(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, keys: Path) -> Path:
    """A sealed store with one snapshot of each of two namespaces."""
    for identity in (WORKLOAD, THEIRS):
        take(sealed_store(tmp_path / "store", keys), identity, STREAMS)
    return tmp_path / "store"


def staged(store: SnapshotStore, ref: SnapshotRef, folder: Path) -> bytes:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    store.open_snapshot(ref).stage(folder)
    return (folder / "pages-1.img").read_bytes()


def objects(folder: Path, kind: str, namespace: str = "team-a") -> list[Path]:
    found = [path for path in (folder / "v1" / namespace / kind).rglob("*") if path.is_file()]
    assert found
    return found


def test_who_has_the_keys_reads_what_was_written(folder: Path, keys: Path, tmp_path: Path) -> None:
    store = sealed_store(folder, keys)

    assert staged(store, SnapshotRef(WORKLOAD, 1), tmp_path / "staged") == MEMORY
    assert store.open_snapshot(SnapshotRef(WORKLOAD, 1)).read("core.img") == WORD
    assert store.verify(SnapshotRef(WORKLOAD, 1)).ok
    assert [str(one.ref) for one in store.list()] == ["team-a/gromacs/0/main@1", "team-b/gromacs/0/main@1"]
    latest = store.latest_snapshot_of(WORKLOAD)
    assert latest is not None
    assert latest.ref.generation == 1


def test_nothing_in_the_store_tells_what_is_in_it(folder: Path) -> None:
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())

    for secret in (WORD, b"core.img", b"avx2", blake3(WORD).digest()):
        assert secret not in everything
    packs = [path.read_bytes() for namespace in ("team-a", "team-b") for path in objects(folder, "packs", namespace)]
    assert len(packs) == 2
    assert packs[0] != packs[1]  # equal memory of two namespaces shows as nothing equal


def test_pages_are_reused_within_an_identity(tmp_path: Path, keys: Path) -> None:
    for cache in (None, tmp_path / "cache"):
        store = sealed_store(tmp_path / f"store-{cache is None}", keys, cache_directory=cache)
        take(store, WORKLOAD, STREAMS)
        fresh = sealed_store(tmp_path / f"store-{cache is None}", keys, cache_directory=cache)

        second = take(fresh, WORKLOAD, STREAMS)

        assert second.summary.stats.reused_bytes > len(MEMORY) * 0.99
        assert staged(fresh, second.ref, tmp_path / "staged") == MEMORY


def test_a_long_page_index_comes_back_in_its_blocks(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedana_sched.store.sealing.seal.INDEX_BLOCK_BYTES", 1000)
    monkeypatch.setattr("cedana_sched.store.sealing.seal._SealedIndex.block_bytes", 1000)
    take(sealed_store(tmp_path / "store", keys), WORKLOAD, STREAMS)

    second = take(sealed_store(tmp_path / "store", keys), WORKLOAD, STREAMS)

    assert second.summary.stats.reused_bytes > len(MEMORY) * 0.99


def test_without_a_key_nothing_is_read_or_written_and_the_error_says_what_to_give(folder: Path) -> None:
    store = sealed_store(folder, None)

    for attempt in (
        lambda: store.open_snapshot(SnapshotRef(WORKLOAD, 1)),
        lambda: store.latest_snapshot_of(WORKLOAD),
        store.list,
        lambda: store.begin(WORKLOAD, checkpoint_uid="new"),
        lambda: store.begin(Identity("team-a", "another"), checkpoint_uid="new"),
    ):
        with pytest.raises(SealedError, match=r"keyFile: none is given, and .*--key-file"):
            attempt()
    assert not list((folder / "v1/team-a/intents").iterdir())


def test_another_key_opens_nothing(folder: Path, tmp_path: Path) -> None:
    store = sealed_store(folder, new_keys(tmp_path, "theirs"))

    for attempt in (lambda: store.latest_snapshot_of(WORKLOAD), lambda: store.begin(WORKLOAD, checkpoint_uid="new")):
        with pytest.raises(SealedError, match=r"key file: .* and not "):
            attempt()


def test_an_unsealed_snapshot_is_refused_where_all_are_sealed(tmp_path: Path, keys: Path) -> None:
    before = take(sealed_store(tmp_path / "store", None), WORKLOAD, STREAMS)
    store = sealed_store(tmp_path / "store", keys)

    for attempt in (lambda: store.open_snapshot(before.ref), lambda: store.latest_snapshot_of(WORKLOAD)):
        with pytest.raises(UnsealedError, match=r"main@1 is not sealed, and keyFile .*acceptUnsealed"):
            attempt()
    assert store.list() == []
    assert take(store, WORKLOAD, STREAMS).summary.stats.reused_bytes == 0  # nothing of it is trusted
    assert store.collect_garbage("team-a", grace_seconds=0)[0].blocked_by == (str(before.ref),)


def test_a_store_may_be_sealed_later(tmp_path: Path, keys: Path) -> None:
    before = take(sealed_store(tmp_path / "store", None), WORKLOAD, STREAMS)
    store = sealed_store(tmp_path / "store", keys, accepts_unsealed=True)

    after = take(store, WORKLOAD, STREAMS)

    assert after.summary.stats.reused_bytes == 0
    for ref in (before.ref, after.ref):
        assert staged(store, ref, tmp_path / "staged") == MEMORY
    assert staged(sealed_store(tmp_path / "store", keys), after.ref, tmp_path / "staged") == MEMORY


def test_nodes_get_keys_one_after_the_other_and_then_seal_one_after_the_other(tmp_path: Path, keys: Path) -> None:
    """Whoever is a step ahead is read and continued by whoever is a step behind, and the other way round."""
    steps = [
        sealed_store(tmp_path / "store", None),
        sealed_store(tmp_path / "store", keys, writes_unsealed=True),
        sealed_store(tmp_path / "store", keys, accepts_unsealed=True),
    ]
    for behind, ahead in itertools.pairwise(steps):
        for writer, other in ((behind, ahead), (ahead, behind), (behind, ahead)):
            made = take(writer, WORKLOAD, STREAMS)
            assert staged(other, made.ref, tmp_path / "staged") == MEMORY
            latest = other.latest_snapshot_of(WORKLOAD)
            assert latest is not None
            assert latest.ref == made.ref
    assert not sealed_store(tmp_path / "store", None).open_snapshot(SnapshotRef(WORKLOAD, 1)).manifest.data_key


def test_a_wrapping_key_is_replaced_without_a_snapshot_written_anew(folder: Path, keys: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "keys" not in path.parts}
    key_file.add_newest(keys)

    assert sealed_store(folder, keys).rewrap() == {"team-a": 1, "team-b": 1}
    assert sealed_store(folder, keys).rewrap() == {"team-a": 0, "team-b": 0}

    without_the_old = [line for line in keys.read_text().splitlines() if not line.startswith("#")][1:]
    keys.write_text("\n".join(without_the_old))
    assert staged(sealed_store(folder, keys), SnapshotRef(WORKLOAD, 1), tmp_path / "staged") == MEMORY
    assert all(path.read_bytes() == data for path, data in before.items())


def test_an_erased_namespace_is_read_by_nobody_and_the_other_by_all(folder: Path, keys: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup of the manifests"
    shutil.copytree(folder / "v1/team-a/snapshots", copy)
    store = sealed_store(folder, keys)

    erased = store.erase_sealed_snapshots("team-a")

    assert (erased.data_keys, erased.snapshots) == (1, 1)
    assert [one.ref.identity for one in store.list()] == [THEIRS]
    assert take(store, WORKLOAD, STREAMS).ref.generation == 2  # no number comes twice
    shutil.copytree(copy, folder / "v1/team-a/snapshots", dirs_exist_ok=True)
    (folder / "v1/team-a/snapshots/gromacs/0/main/0000000001.removed").unlink()
    with pytest.raises(IntegrityError, match=r"data key \w+ of namespace team-a is not in the store"):
        sealed_store(folder, keys).open_snapshot(SnapshotRef(WORKLOAD, 1))
    assert staged(sealed_store(folder, keys), SnapshotRef(THEIRS, 1), tmp_path / "staged") == MEMORY


def test_erasing_leaves_what_is_not_sealed(tmp_path: Path) -> None:
    store = sealed_store(tmp_path / "store", None)
    manifest = take(store, WORKLOAD, STREAMS)

    with pytest.raises(NotFoundError, match="'team-a' has nothing that is sealed"):
        store.erase_sealed_snapshots("team-a")
    assert store.committed_snapshots() == (manifest.ref,)


def test_an_erased_key_is_forgotten(folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sealed_store(folder, keys)
    store.open_snapshot(SnapshotRef(WORKLOAD, 1))
    for path in objects(folder, "keys"):
        path.unlink()
    store.open_snapshot(SnapshotRef(WORKLOAD, 1))  # it knows it for a minute at most

    monkeypatch.setattr("cedana_sched.store.sealing.data_keys.time.monotonic", lambda: float("inf"))
    with pytest.raises(IntegrityError, match="is not in the store"):
        store.open_snapshot(SnapshotRef(WORKLOAD, 1))


def test_a_long_dump_needs_no_wrapping_key_at_its_end_and_none_is_committed_under_an_erased_key(
    folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dumps outlive an agent, and the Secret that was mounted into it."""
    for is_erased in (False, True):
        store = sealed_store(folder, keys)
        with store.begin(WORKLOAD, checkpoint_uid=f"uid {is_erased}") as writer:
            away = keys.rename(keys.with_name("away"))
            if is_erased:
                for path in objects(folder, "keys"):
                    path.unlink()
                with pytest.raises(IntegrityError, match="was erased during the dump"):
                    writer.commit(metadata(writer.checkpoint_uid))
            else:
                monkeypatch.setattr("cedana_sched.store.sealing.data_keys.REMEMBERED_SECONDS", 0.0)
                writer.commit(metadata(writer.checkpoint_uid))
        away.rename(keys)


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("kind", ["packs", "snapshots", "keys"])
def test_objects_of_two_namespaces_cannot_be_swapped(folder: Path, keys: Path, tmp_path: Path, kind: str) -> None:
    (ours,), (others,) = (objects(folder, kind, namespace) for namespace in ("team-a", "team-b"))
    _swap(ours, others)

    with pytest.raises(REFUSED):
        staged(sealed_store(folder, keys), SnapshotRef(WORKLOAD, 1), tmp_path / "staged")


def test_a_namespace_moved_whole_is_refused(folder: Path, keys: Path) -> None:
    shutil.copytree(folder / "v1/team-a", folder / "v1/team-c")
    with pytest.raises(SealedError, match="does not unwrap"):
        sealed_store(folder, keys).open_snapshot(SnapshotRef(Identity("team-c", "gromacs"), 1))


def test_manifests_of_two_snapshots_cannot_be_swapped(folder: Path, keys: Path) -> None:
    """Of one identity, and of two: an older state, or another replica's, would be continued in its place."""
    store = sealed_store(folder, keys)
    second = take(store, WORKLOAD, STREAMS)
    replica = take(store, Identity("team-a", "gromacs", 1), STREAMS)
    first = folder / layout.manifest_key(SnapshotRef(WORKLOAD, 1))
    for other in (second, replica):
        path = folder / layout.manifest_key(other.ref)
        _swap(first, path)
        for ref in (SnapshotRef(WORKLOAD, 1), other.ref):
            with pytest.raises(IntegrityError, match="its seal is broken"):
                sealed_store(folder, keys).open_snapshot(ref)
        _swap(first, path)
    sealed_store(folder, keys).open_snapshot(SnapshotRef(WORKLOAD, 1))


def test_chunks_of_one_pack_cannot_be_swapped(tmp_path: Path, keys: Path) -> None:
    store = sealed_store(tmp_path / "store", keys)
    manifest = take(store, WORKLOAD, {"pages-1.img": random.Random(2).randbytes(2 << 20)})
    (pack,) = objects(tmp_path / "store", "packs")
    data, half = pack.read_bytes(), manifest.chunks[0].stored
    assert len(data) == 2 * half
    pack.write_bytes(data[half:] + data[:half])

    assert sealed_store(tmp_path / "store", keys).verify(manifest.ref).damaged == 2


def test_page_indexes_of_two_snapshots_cannot_be_swapped(folder: Path, keys: Path) -> None:
    """Another's is not refused in words, for nothing needs it: it counts as lost, and all pages are written."""
    replica = take(sealed_store(folder, keys), Identity("team-a", "gromacs", 1), STREAMS)
    assert replica.summary.page_index is not None
    (ours,) = (folder / "v1/team-a/pages/gromacs/0").rglob("0*")
    _swap(ours, folder / replica.summary.page_index)

    assert take(sealed_store(folder, keys), WORKLOAD, STREAMS).summary.stats.reused_bytes == 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sealed store, not to be changed, and its keys."""
    folder = tmp_path_factory.mktemp("sound")
    keys = new_keys(folder)
    take(sealed_store(folder / "store", keys), WORKLOAD, SMALL)
    return folder / "store", keys


class Changed(PosixBackend):
    """A store in which a byte of one kind of object is another."""

    def __init__(self, root: Path, kind: str, at: int, bit: int) -> None:
        super().__init__(root)
        self._kind = f"/{kind}/"
        self._at = at
        self._bit = 1 << bit

    def get(self, key: str, *, at_most: int) -> bytes:
        return self._changed(key, 0, super().get(key, at_most=at_most))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._changed(key, offset, bytes(super().get_range(key, offset, length)))

    def _changed(self, key: str, offset: int, data: bytes) -> bytes:
        if self._kind not in key:
            return data
        entry = self.stat(key)
        assert entry is not None
        at = self._at % entry.size - offset
        if not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ self._bit]) + data[at + 1 :]


@pytest.mark.parametrize("kind", ["packs", "snapshots", "keys"])
@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_changed_byte_of_whatever_object_is_refused_and_never_laid(
    sound: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, kind: str, at: int, bit: int
) -> None:
    folder, keys = sound
    store = sealed_store(Changed(folder, kind, at, bit), keys)
    target = tmp_path_factory.mktemp("staged")

    with pytest.raises(REFUSED):
        store.open_snapshot(SnapshotRef(WORKLOAD, 1)).stage(target)

    for path in target.rglob("*.img"):
        laid = zip(path.read_bytes(), SMALL[path.name], strict=True)
        assert all(byte in {0, written} for byte, written in laid)


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=20)
def test_a_changed_byte_of_a_page_index_is_noticed(sound: tuple[Path, Path], at: int, bit: int) -> None:
    folder, keys = sound
    store = sealed_store(Changed(folder, "pages", at, bit), keys)
    with store.begin(WORKLOAD, checkpoint_uid="next") as writer:
        assert writer._previous is None


@given(st.binary(max_size=300))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.parametrize("kind", ["snapshots", "keys"])
def test_whatever_lies_there_is_refused_in_words(sound: tuple[Path, Path], kind: str, data: bytes) -> None:
    folder, keys = sound

    class Replaced(Changed):
        def _changed(self, key: str, offset: int, whole: bytes) -> bytes:
            return data[offset:] if self._kind in key else whole

    store = sealed_store(Replaced(folder, kind, 0, 0), keys)
    with pytest.raises(CedanaSchedError):
        store.open_snapshot(SnapshotRef(WORKLOAD, 1))


def test_no_nonce_comes_twice_under_a_key(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, int]] = []
    of: dict[CountedKey, bytes] = {}
    begin, seal = CountedKey.__init__, CountedKey.seal_into

    def made(self: CountedKey, key: bytes) -> None:
        of[self] = key
        begin(self, key)

    def sealed(self: CountedKey, number: int, data: bytes, place: bytes, target: memoryview) -> None:
        used.append((of[self], number))
        seal(self, number, data, place, target)

    monkeypatch.setattr(CountedKey, "__init__", made)
    monkeypatch.setattr(CountedKey, "seal_into", sealed)
    store = sealed_store(tmp_path / "store", keys)
    for seed in range(3):
        take(store, WORKLOAD, {"pages-1.img": random.Random(seed).randbytes(3 << 20), "core.img": b"%d" % seed})

    assert len(used) == len(set(used)) > 3 * 4


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_two_places_are_never_the_same_bytes(one: list[bytes], other: list[bytes]) -> None:
    assert (encode_context(*one) == encode_context(*other)) == (one == other)


def test_keys_of_two_purposes_differ() -> None:
    secret = bytes(32)
    assert (
        len(
            {
                derive_key(secret, "a"),
                derive_key(secret, "b"),
                derive_key(secret, "a", b"1"),
                derive_key(secret, "a", b"2"),
            }
        )
        == 4
    )


class Attack:
    """Somebody who can write to the store, knows its format and what is in it, and wants his own image continued."""

    def __init__(self, folder: Path, known: Manifest) -> None:
        self._folder = folder
        self._known = known

    def forge(self, stream: bytes) -> None:
        """In place of the newest snapshot one whose `core.img` says what he likes: digests need no key."""
        pack = self._folder / layout.pack_key("team-a", self._known.summary.packs[0])
        number = next(one.segments.chunks for one in self._known.streams if one.name == "core.img")
        chunk = int.from_bytes(number, "little")
        rows = self._known.chunks
        pack.write_bytes((whole := pack.read_bytes()) + stream)
        path = self._folder / layout.manifest_key(self._known.ref)
        chunks = _with_row(rows, chunk, stream, offset=len(whole))
        path.write_bytes(encode_manifest(msgspec.structs.replace(self._known, chunks=chunks, data_key="")))


def _with_row(rows: Chunks, chunk: int, payload: bytes, *, offset: int) -> Chunks:
    def put(column: bytes, width: int, value: bytes) -> bytes:
        return column[: chunk * width] + value + column[(chunk + 1) * width :]

    size = len(payload).to_bytes(4, "little")
    return Chunks(
        digests=put(rows.digests, 32, blake3(payload).digest()),
        packs=rows.packs,
        offsets=put(rows.offsets, 8, offset.to_bytes(8, "little")),
        stored=put(rows.stored, 4, size),
        sizes=put(rows.sizes, 4, size),
        codecs=put(rows.codecs, 1, bytes([RAW])),
    )


ROOT = b"uid 0, every capability, namespaces of the node"[: len(WORD)]


def test_who_writes_to_an_unsealed_store_says_what_is_continued(tmp_path: Path) -> None:
    """Known, and why stores are sealed: the digests of an unsealed snapshot are everybody's to make."""
    known = take(sealed_store(tmp_path / "store", None), WORKLOAD, STREAMS)
    Attack(tmp_path / "store", known).forge(ROOT)

    assert sealed_store(tmp_path / "store", None).open_snapshot(known.ref).read("core.img") == ROOT


def test_who_writes_to_a_sealed_store_says_nothing(tmp_path: Path, keys: Path) -> None:
    known = take(sealed_store(tmp_path / "store", keys), WORKLOAD, STREAMS)
    Attack(tmp_path / "store", known).forge(ROOT)

    with pytest.raises(UnsealedError):
        sealed_store(tmp_path / "store", keys).open_snapshot(known.ref)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_another_manifest_than_was_committed_is_refused(tmp_path: Path, keys: Path, is_sealed: bool) -> None:
    """Of an unsealed snapshot too, and of one that was sealed anew: nothing but the digest tells."""
    store = sealed_store(tmp_path / "store", keys if is_sealed else None)
    with store.begin(WORKLOAD, checkpoint_uid="uid") as writer:
        with writer.open_stream("core.img") as stream:
            stream.write(WORD)
        manifest = writer.commit(metadata("uid"))
    committed = writer.manifest_digest
    assert store.manifest_digest(manifest.ref) == committed
    assert store.open_snapshot(manifest.ref, committed).read("core.img") == WORD

    path = tmp_path / "store" / layout.manifest_key(manifest.ref)
    other = msgspec.structs.replace(manifest, seed=1)
    key = DataKeys(PosixBackend(tmp_path / "store"), key_file.KeyFile(keys)).for_writing("team-a")
    path.write_bytes(seal_manifest(key, other.ref, encode_manifest(other)) if is_sealed else encode_manifest(other))
    store.open_snapshot(manifest.ref)
    with pytest.raises(IntegrityError, match="its manifest is another one than was committed"):
        store.open_snapshot(manifest.ref, committed)


def _own_kinds(folder: Path, keys: Path) -> Iterator[Callable[[], object]]:
    """Whatever else the attacker may try to have taken for the owner's: his own keys and all that they seal."""
    theirs = sealed_store(folder.parent / "theirs", new_keys(folder.parent, "their keys"))
    forged = take(theirs, WORKLOAD, {"pages-1.img": MEMORY, "core.img": ROOT})
    store = sealed_store(folder, keys)
    shutil.copytree(folder.parent / "theirs" / "v1", folder / "v1", dirs_exist_ok=True)
    yield lambda: store.open_snapshot(forged.ref)
    yield lambda: store.latest_snapshot_of(WORKLOAD)
    yield lambda: store.begin(WORKLOAD, checkpoint_uid="next")


def test_snapshots_under_the_attackers_own_keys_are_refused(folder: Path, keys: Path) -> None:
    for attempt in _own_kinds(folder, keys):
        with pytest.raises(SealedError):
            attempt()


def test_the_manifest_says_under_which_key_its_chunks_are(folder: Path, keys: Path) -> None:
    manifest = sealed_store(folder, keys).open_snapshot(SnapshotRef(WORKLOAD, 1)).manifest
    assert manifest.data_key == objects(folder, "keys")[0].name
    with pytest.raises(IncompatibleError, match="upgrade"):  # what a program without seals says
        decode_manifest((folder / layout.manifest_key(manifest.ref)).read_bytes())
