"""What a collection remembers takes little memory, whoever has written it, and is read again however large it is."""

from __future__ import annotations

import tracemalloc
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import zstandard
from blake3 import blake3

from cedana_sched.store import layout, references
from cedana_sched.store.backend import Entry
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.references import ManifestReferences

NAMESPACE = "team-a"
MIB = 1 << 20
KEY = layout.references_key(NAMESPACE)


def pack(number: int, writer: int = 0) -> str:
    return f"{writer:032x}-{number:06d}"


def lay(backend: PosixBackend, content: Any) -> None:
    """As anybody can."""
    body = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(content))
    backend.put(KEY, blake3(body).digest() + body)


def peak(backend: PosixBackend) -> int:
    """MiB that reading takes, where nothing of it is believed."""
    tracemalloc.start()
    try:
        assert references._read_cache(backend, NAMESPACE) == {}
        return tracemalloc.get_traced_memory()[1] // MIB
    finally:
        tracemalloc.stop()


LONG = "k" * 64
MANY = [[f"{number:032x}", 1, 0.0, [[], None]] for number in range(300_000)]


OF_ANYBODY = {
    "names": [[LONG, 1, 0.0, [[pack(number) for number in range(700_000)], None]]],
    "a long name": [[LONG, 1, 0.0, [[pack(1), "\N{SNOWMAN}" + "a" * 30 * MIB], None]]],
    "a long key": [["\N{SNOWMAN}" + "a" * 30 * MIB, 1, 0.0, [[], None]]],
    "rows": MANY,
    "names in the table": [[pack(number) for number in range(700_000)], []],
    "rows of a table": [[], [[key, size, modified, b"", None] for key, size, modified, _ in MANY]],
    "larger than any": [["a" * 40 * MIB], []],
}


@pytest.mark.parametrize("content", OF_ANYBODY.values(), ids=OF_ANYBODY)
def test_what_nobody_of_us_writes_is_not_decoded(tmp_path: Path, content: Any) -> None:
    backend = PosixBackend(tmp_path)
    lay(backend, content)
    assert peak(backend) < 60


@pytest.mark.parametrize("numbers", [array("I", [1]).tobytes(), array("I", [(1 << 32) - 1]).tobytes(), b"abc"])
def test_numbers_of_no_pack_are_damage(tmp_path: Path, numbers: bytes) -> None:
    backend = PosixBackend(tmp_path)
    lay(backend, [[pack(1)], [[LONG, 1, 0.0, numbers, None]]])
    assert references._read_cache(backend, NAMESPACE) == {}


def remembered(backend: PosixBackend, needed: dict[Entry, ManifestReferences]) -> dict[Entry, ManifestReferences]:
    references._write_cache(backend, NAMESPACE, needed)
    return references._read_cache(backend, NAMESPACE)


def entry(number: int) -> Entry:
    return Entry(
        f"v1/{NAMESPACE}/snapshots/{'a-long-id-' * 6}/0/main/{number:010d}.manifest", 12_000_000, float(number)
    )


def test_generations_of_a_large_workload_are_remembered(tmp_path: Path) -> None:
    """As many as a policy may keep, of 512 GiB each, a twentieth of which is new in each."""
    count = (512 << 30) // (64 << 20)
    names = [pack(number % count, number // count) for number in range(count + 500 * count // 20)]
    needed = {
        entry(number): ManifestReferences(
            tuple(names[number * count // 20 :][:count]), f"v1/{NAMESPACE}/pages/{number}"
        )
        for number in range(500)
    }
    assert remembered(PosixBackend(tmp_path), needed) == needed


def test_as_many_small_ones_as_are_counted_are_remembered(tmp_path: Path) -> None:
    needed = {
        entry(number): ManifestReferences((pack(0, number),), f"v1/{NAMESPACE}/pages/{number}")
        for number in range(references.MOST_REMEMBERED)
    }
    assert remembered(PosixBackend(tmp_path), needed) == needed


def test_what_does_not_fit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = PosixBackend(tmp_path)
    fits = {entry(number): ManifestReferences((pack(number),), None) for number in range(1, 10)}
    others = {
        entry(0): ManifestReferences(tuple(pack(number) for number in range(200)), None),
        entry(20): ManifestReferences(("of-no-writer",), None),
        entry(21): ManifestReferences(tuple(pack(1) for _ in range(3_000)), None),
        entry(22): ManifestReferences((), "a" * 1025),
    }
    monkeypatch.setattr(references, "MOST_BYTES", 8_000)
    monkeypatch.setattr(references, "MOST_PACKS", 100)
    assert remembered(backend, fits | others) == fits


def test_manifests_that_are_read_share_the_names_of_their_packs() -> None:
    rows = [(cast("Any", number), Entry(f"m{number}", 1, 0.0)) for number in range(20)]

    class Catalogue:
        def read_summary(self, _ref: object, _entry: Entry) -> Any:
            return SimpleNamespace(packs=tuple(pack(number) for number in range(20_000)), page_index=None)

    tracemalloc.start()
    try:
        found = references._read_manifests(cast("Any", Catalogue()), rows)
        kept = tracemalloc.get_traced_memory()[0] // MIB
    finally:
        tracemalloc.stop()
    assert len(found) == len(rows)
    assert kept < 10, "20 times 2 MiB"
