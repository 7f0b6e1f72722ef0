"""Every parser that reads the store takes any bytes: it reads them, or refuses them in words, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import IncompatibleError, IntegrityError
from cedana_sched.model.manifest import Manifest
from cedana_sched.store import layout, manifest_format
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.collection_turns import collect_if_due
from cedana_sched.store.garbage import collect_garbage
from cedana_sched.store.intents import Intent
from cedana_sched.store.posix import PosixBackend
from tests.unit.store.test_manifest_format import MANIFEST, file_of

Plain = msgspec.to_builtins(MANIFEST, builtin_types=(bytes,))
SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=40)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
NO_TEXT = b"\xa2\xff\xff"
"""A text in MessagePack that is no UTF-8."""
AN_INTENT = msgspec.msgpack.encode(Intent("a" * 32, MANIFEST.ref.identity, (f"{'b' * 32}-000001",)))
DATA = (
    st.binary(max_size=200)
    | VALUES.map(msgspec.msgpack.encode)
    | st.sampled_from(
        [NO_TEXT, AN_INTENT, AN_INTENT.replace(b"gromacs", b"../..//"), AN_INTENT.replace(b"main", b"\xff" * 4)]
    )
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all that stands in a value, itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    if isinstance(value, dict):
        return {key: replaced(one, path[1:], by) if key == path[0] else one for key, one in value.items()}
    return [replaced(one, path[1:], by) if number == path[0] else one for number, one in enumerate(value)]


def read(file: bytes) -> Manifest | None:
    for decode in (manifest_format.decode_summary, manifest_format.decode_manifest):
        try:
            found = decode(file)
        except (IntegrityError, IncompatibleError):
            return None
    assert isinstance(found, Manifest)
    return found


@given(header=DATA, body=DATA)
@settings(deadline=None)
def test_any_bytes_as_a_manifest(header: bytes, body: bytes) -> None:
    assert read(file_of(header, body)) is None


@given(place=st.sampled_from(places(Plain)), by=VALUES)
@settings(deadline=None, max_examples=400)
def test_a_manifest_with_anything_in_one_place(place: tuple[Any, ...], by: Any) -> None:
    """What is read all the same can be used: its tables fit each other."""
    changed = replaced(Plain, place, by)
    summary = changed.get("summary") if isinstance(changed, dict) else changed
    found = read(file_of(msgspec.msgpack.encode(summary), msgspec.msgpack.encode(changed)))
    if found is not None:
        assert all(sum(1 for _ in stream.segments) == len(stream.segments) for stream in found.streams)
        assert all(found.chunks[number].pack < len(found.summary.packs) for number in range(len(found.chunks)))


@given(at=st.integers(0, 1 << 16), byte=st.integers(0, 255))
@settings(deadline=None, max_examples=400)
def test_a_manifest_with_one_byte_changed_and_its_digests_made_anew(at: int, byte: int) -> None:
    for whole in (MANIFEST, MANIFEST.summary):
        data = bytearray(msgspec.msgpack.encode(whole))
        data[at % len(data)] = byte
        read(file_of(bytes(data), msgspec.msgpack.encode(MANIFEST)))
        read(file_of(msgspec.msgpack.encode(MANIFEST.summary), bytes(data)))


def test_the_manifest_of_these_tests_is_read() -> None:
    assert read(file_of(msgspec.msgpack.encode(Plain["summary"]), msgspec.msgpack.encode(Plain))) == MANIFEST


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "a/b/c", "", "..", "a/..", "x\0", "/etc/passwd"])
def test_a_stream_that_leads_elsewhere_is_refused_where_the_manifest_is_read(name: str) -> None:
    (first, *others) = MANIFEST.streams
    streams = (msgspec.structs.replace(first, name=name), *others)
    with pytest.raises(IntegrityError, match="cannot be the name of a stream"):
        manifest_format.decode_manifest(
            manifest_format.encode_manifest(msgspec.structs.replace(MANIFEST, streams=streams))
        )


KEYS = st.sampled_from([
    layout.references_key("team-a"), layout.collector_key("team-a"), f"{layout.intents_folder('team-a')}/{'a' * 32}",
    layout.manifest_key(MANIFEST.ref), f"{layout.condemned_folder('team-a')}/x", f"{layout.packs_folder('team-a')}/x-0",
    layout.removed_key(MANIFEST.ref), layout.claim_key(MANIFEST.ref, "b" * 32),
])  # fmt: skip


@given(st.dictionaries(KEYS, DATA | st.builds(lambda body: blake3(body).digest() + body, DATA)))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_collection_among_anything(tmp_path_factory: pytest.TempPathFactory, there: dict[str, bytes]) -> None:
    folder: Path = tmp_path_factory.mktemp("store")
    backend = PosixBackend(folder)
    for key, data in there.items():
        backend.put(key, data)
    catalogue = Catalogue(backend)

    collect_if_due(backend, "team-a", 0.0, lambda: collect_garbage(backend, catalogue, "team-a", grace_seconds=0))

    for ref in catalogue.list_generations(layout.snapshots_folder("team-a")).committed:
        with suppress(IntegrityError, IncompatibleError):
            catalogue.read_manifest(ref)
