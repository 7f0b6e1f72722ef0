"""What says that it is large is refused before room is made for it: anybody may have written it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

import cedana_sched.store
from cedana_sched.model.errors import IntegrityError
from cedana_sched.store import layout, manifest_format, references
from cedana_sched.store.compression import ZSTD, decompress
from cedana_sched.store.decoding import decompress_bounded
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.sealing.sealed_manifest_format import SEALED, sealed_head_length

MIB = 1 << 20


def bomb(mib: int) -> bytes:
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=mib * MIB)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(mib)), packer.flush()])


def test_a_frame_that_says_that_it_is_larger_than_it_may_be_is_refused() -> None:
    packed = bomb(64)
    assert len(packed) < MIB // 16
    with pytest.raises(IntegrityError, match="67,108,864 bytes long, of 1,048,576 at most"):
        decompress_bounded(packed, MIB)
    with pytest.raises(IntegrityError, match="bytes long"):
        decompress(ZSTD, packed, MIB)
    assert decompress_bounded(packed, 64 * MIB) == bytes(64 * MIB)


def test_a_frame_that_does_not_say_how_long_it_is_is_refused() -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    with pytest.raises(IntegrityError, match="at most"):
        decompress_bounded(packer.compress(b"a") + packer.flush(), MIB)


def test_what_a_collection_remembers_is_read_anew_where_it_is_a_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MOST_BYTES", MIB)
    backend, packed = PosixBackend(tmp_path), bomb(2)
    backend.put(layout.references_key("team-a"), blake3(packed).digest() + packed)
    assert references._read_cache(backend, "team-a") == {}


@pytest.mark.parametrize(("sealed", "length"), [(0, manifest_format.head_length), (SEALED, sealed_head_length)])
def test_a_header_of_gigabytes_is_refused_before_it_is_read(sealed: int, length: object) -> None:
    data_key = b"0" * 32
    head = struct.pack("<8sIIQ32s32s", manifest_format.MAGIC, 1 | sealed, (1 << 32) - 1, 0, data_key, bytes(32))
    assert callable(length)
    with pytest.raises(IntegrityError, match="4,294,967,295 bytes long"):
        length(head)


def test_frames_are_unpacked_in_one_place() -> None:
    (package,) = cedana_sched.store.__path__
    found = {path.name for path in Path(package).rglob("*.py") if "ZstdDecompressor" in path.read_text()}
    assert found == {"decoding.py"}
