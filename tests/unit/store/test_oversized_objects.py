"""Whatever size an object has that somebody laid into a namespace: no more of it is read than one of its kind may have.

The sizes here are of sparse files, and of answers that a server never ends: whoever reads one whole has no memory left.
"""

from __future__ import annotations

import inspect
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cedana_sched.model.errors import IntegrityError, UnsealedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import catalogue, layout, manifest_format
from cedana_sched.store.backend import Backend
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.scoped import ScopedBackend
from cedana_sched.store.sealing import data_keys
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import S3Location
from tests.servers.counting import CountingBackend
from tests.servers.loopback import QuietHandler, serving
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import take

WORKLOAD = Identity("team-a", "md")
STREAMS = {"core.img": b"memory"}
TIB = 1 << 40
MOST_READ = 16 << 20
MOST_SENT = 64 << 20
"""So that whoever asks for all of an answer without an end gets it."""


@pytest.fixture(params=["sealed", "not sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SnapshotStore, CountingBackend]:
    """With two generations."""
    backend = CountingBackend(tmp_path / "store")
    is_sealed = request.param == "sealed"
    opened = sealed_store(backend, new_keys(tmp_path)) if is_sealed else SnapshotStore(backend)
    for _ in range(2):
        take(opened, WORKLOAD, STREAMS)
    backend.forget()
    return opened, backend


def stretch(backend: PosixBackend, key: str, content: bytes | None = None) -> None:
    """Let the object go on to a TiB."""
    path = backend.root / key
    if content is not None:
        path.write_bytes(content)
    os.truncate(path, TIB)


def newest(generation: int = 2) -> SnapshotRef:
    return SnapshotRef(WORKLOAD, generation)


def test_a_manifest_that_goes_on_behind_its_end_is_damaged(store: tuple[SnapshotStore, CountingBackend]) -> None:
    opened, backend = store
    key = layout.manifest_key(newest())
    length = (backend.root / key).stat().st_size
    stretch(backend, key)

    with pytest.raises(IntegrityError) as caught:
        opened.open_snapshot(newest())

    assert f"snapshot {newest()}: object {key} has {TIB:,} bytes, more than {length:,}" in caught.value.message
    assert opened.open_snapshot(newest(1)).read("core.img") == b"memory"
    assert take(opened, WORKLOAD, STREAMS).ref.generation == 3
    assert backend.bytes_read < MOST_READ


@pytest.mark.parametrize("says", [manifest_format.MOST_BODY_BYTES + 1, TIB, (1 << 64) - 1])
def test_a_manifest_that_says_that_it_is_larger_than_any_is_damaged(
    store: tuple[SnapshotStore, CountingBackend], says: int
) -> None:
    opened, backend = store
    key = layout.manifest_key(newest())
    content = bytearray((backend.root / key).read_bytes())
    struct.pack_into("<Q", content, 16, says)
    stretch(backend, key, bytes(content))

    with pytest.raises(IntegrityError, match=f"says that it is {says:,} bytes long"):
        opened.open_snapshot(newest())

    latest = opened.latest_snapshot_of(WORKLOAD)
    assert latest is not None
    assert latest.ref == newest(1)
    assert take(opened, WORKLOAD, STREAMS).ref.generation == 3
    assert backend.bytes_read < MOST_READ


@pytest.mark.parametrize("is_sealed", [True, False])
def test_in_a_sealed_store_a_manifest_is_read_when_its_head_is_ours(tmp_path: Path, is_sealed: bool) -> None:
    """Whoever has no key has it read as far as it is usual at most, whatever its head says."""
    backend = CountingBackend(tmp_path / "store")
    opened = sealed_store(backend, new_keys(tmp_path))
    take(opened, WORKLOAD, STREAMS)
    (tmp_path / "other").mkdir()
    other = PosixBackend(tmp_path / "other/store")
    foreign = sealed_store(other, new_keys(tmp_path / "other")) if is_sealed else SnapshotStore(other)
    take(foreign, WORKLOAD, STREAMS)
    content = bytearray(other.get(layout.manifest_key(newest(1)), at_most=1 << 20))
    if is_sealed:  # its data key is named in the open
        content[24:56] = backend.get(layout.manifest_key(newest(1)), at_most=1 << 20)[24:56]
    struct.pack_into("<Q", content, 16, 512 << 20)
    backend.put(layout.manifest_key(newest()), bytes(content))
    os.truncate(backend.root / layout.manifest_key(newest()), 513 << 20)
    backend.forget()

    with pytest.raises(IntegrityError if is_sealed else UnsealedError):
        opened.open_snapshot(newest())

    assert take(opened, WORKLOAD, STREAMS).ref.generation == 3
    assert backend.bytes_read < MOST_READ


def test_a_manifest_longer_than_what_is_read_at_once_is_read_whole(
    store: tuple[SnapshotStore, CountingBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, _ = store
    monkeypatch.setattr(catalogue, "_USUAL_BYTES", 200)
    assert opened.open_snapshot(newest()).read("core.img") == b"memory"
    assert take(opened, WORKLOAD, STREAMS).ref.generation == 3


@pytest.mark.parametrize("column", ["stored", "sizes"])
def test_a_chunk_that_is_larger_than_any_is_damaged(tmp_path: Path, column: str) -> None:
    """Where nothing is sealed anybody may have written the table; a chunk is read and unpacked whole."""
    backend = CountingBackend(tmp_path)
    opened = SnapshotStore(backend)
    first = take(opened, WORKLOAD, STREAMS)
    says = array("I", [256 << 20] * len(first.chunks)).tobytes()
    forged = msgspec.structs.replace(first, chunks=msgspec.structs.replace(first.chunks, **{column: says}))
    backend.put(layout.manifest_key(first.ref), manifest_format.encode_manifest(forged))
    stretch(backend, layout.pack_key(WORKLOAD.namespace, first.summary.packs[0]))
    backend.forget()

    with pytest.raises(IntegrityError, match="a chunk is larger than any"):
        opened.open_snapshot(first.ref).read("core.img")

    assert take(opened, WORKLOAD, STREAMS).ref.generation == 2
    assert backend.bytes_read < MOST_READ


def test_a_chunk_that_lies_nowhere_is_damaged(tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path)
    opened = SnapshotStore(backend)
    first = take(opened, WORKLOAD, STREAMS)
    nowhere = array("Q", [1 << 63] * len(first.chunks)).tobytes()
    forged = msgspec.structs.replace(first, chunks=msgspec.structs.replace(first.chunks, offsets=nowhere))
    backend.put(layout.manifest_key(first.ref), manifest_format.encode_manifest(forged))
    with pytest.raises(IntegrityError, match="further behind than any pack ends"):
        opened.open_snapshot(first.ref).read("core.img")


def test_a_data_key_of_any_size_is_named_and_passed_over(tmp_path: Path) -> None:
    backend, keys = CountingBackend(tmp_path / "store"), new_keys(tmp_path)
    sound = take(sealed_store(backend, keys), WORKLOAD, STREAMS).data_key
    forged = f"{int(sound[:10], 16) + 1:010x}{'0' * 22}"
    key = layout.data_key_key(WORKLOAD.namespace, forged)
    backend.forget()
    stretch(backend, key, b"no key")

    with capture_logs() as told:
        assert take(sealed_store(backend, keys), WORKLOAD, STREAMS).data_key == sound

    [line] = [one for one in told if one["event"] == "data_key_passed_over"]
    assert f"object {key} has {TIB:,} bytes, more than {data_keys.MOST_BYTES:,}" in line["error"]
    assert backend.bytes_read < MOST_READ


def test_a_folder_gives_no_object_that_is_larger(tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path)
    backend.put("v1/a", b"whole")
    assert backend.get("v1/a", at_most=5) == b"whole"
    with pytest.raises(IntegrityError, match="object v1/a has 5 bytes, more than 4"):
        backend.get("v1/a", at_most=4)


class Endless(QuietHandler):
    """Every object is a TiB long, and comes whole whatever part is asked for."""

    def do_GET(self) -> None:  # noqa: N802  # a name of the library
        self.send_response(200)
        self.send_header("Content-Length", str(TIB))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.close_connection = True
        try:
            for _ in range(MOST_SENT // MOST_READ):
                self.wfile.write(bytes(MOST_READ))
        except ConnectionError:  # whoever asked has gone
            return


@contextmanager
def bucket(handler: type[BaseHTTPRequestHandler]) -> Iterator[S3Backend]:
    with serving(handler) as url:
        told = {"bucket": "lab", "endpoint": url, "accessKey": "a", "secretKey": "b", "allowHttp": True}
        yield S3Backend(S3Location.model_validate(told))


def test_a_bucket_gives_no_object_that_is_larger() -> None:
    with (
        bucket(Endless) as backend,
        pytest.raises(IntegrityError, match=f"object v1/a has {TIB:,} bytes, more than 4,096"),
    ):
        backend.get("v1/a", at_most=4096)


def test_a_server_without_ranges_is_read_as_far_as_the_part_goes() -> None:
    with bucket(Endless) as backend:
        for offset in (0, MOST_READ + 5):
            assert bytes(backend.get_range("v1/a", offset, 1000)) == bytes(1000)


@pytest.mark.parametrize("kind", [Backend, PosixBackend, S3Backend, ScopedBackend])
def test_whoever_reads_a_whole_object_says_how_large_it_may_be(kind: type[Backend]) -> None:
    most = inspect.signature(kind.get).parameters["at_most"]
    assert (most.kind, most.default) == (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty)
