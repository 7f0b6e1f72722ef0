"""A manifest file: what was written is read, what was damaged is refused, what is newer is called newer."""

from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from zstandard import ZstdCompressor

from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.errors import IncompatibleError, IntegrityError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import (
    ZERO_CHUNK,
    Chunk,
    Chunks,
    Manifest,
    PageIndex,
    Segment,
    Segments,
    SnapshotMetadata,
    SnapshotSummary,
    StreamEntry,
    TransferStats,
)
from cedana_sched.store import manifest_format
from cedana_sched.store.layout import parse_generation_key
from cedana_sched.store.manifest_format import (
    PREAMBLE_BYTES,
    decode_manifest,
    decode_summary,
    encode_manifest,
    head_length,
)


def u32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def u64(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


MANIFEST = Manifest(
    summary=SnapshotSummary(
        ref=SnapshotRef(Identity("team-a", "gromacs", 3, "main"), 7),
        writer="a" * 32,
        checkpoint_uid="uid",
        committed_at=12.5,
        taken_at=11.5,
        reason="Preempted",
        adapter="embedded",
        labels={"app": "md"},
        stats=TransferStats(8192, 4096, 0, 4096, 100),
        packs=("one-000000",),
        page_index="v1/team-a/pages/x",
    ),
    metadata=SnapshotMetadata(
        checkpoint_uid="uid",
        compatibility=Compatibility("x86_64", frozenset({"avx2"}), (6, 18), "4.2.1"),
        taken_at=11.5,
        runtime={"argv": ["a", "b"], "nested": {"x": 1.5, "y": None}},
    ),
    streams=(
        StreamEntry("pages-1.img", 8192, Segments(u32(0, ZERO_CHUNK), u32(0, 0), u64(4096, 4096))),
        StreamEntry("empty.img", 0, Segments(b"", b"", b"")),
    ),
    chunks=Chunks(b"d" * 32, u32(0), u64(1 << 40), u32(100), u32(4096), b"\x01"),
    seed=(1 << 63) - 1,
    page_index=PageIndex(16, b"x" * 32, u32(0, 1)),
)
FILE = encode_manifest(MANIFEST)


def test_a_manifest_comes_back_with_its_tables() -> None:
    manifest = decode_manifest(FILE)

    assert manifest == MANIFEST
    assert list(manifest.streams[0].segments) == [Segment(0, 0, 4096), Segment(ZERO_CHUNK, 0, 4096)]
    assert len(manifest.streams[0].segments) == 2
    assert manifest.chunks[0] == Chunk(b"d" * 32, 0, 1 << 40, 100, 4096, 1)
    assert manifest.size_bytes == 8192


def test_the_summary_is_read_from_the_head_alone() -> None:
    head = FILE[: head_length(FILE[:PREAMBLE_BYTES])]

    assert decode_summary(head) == MANIFEST.summary


@given(at=st.integers(0, len(FILE) - 1), bit=st.integers(0, 7))
@settings(deadline=None)
def test_every_damaged_bit_is_noticed(at: int, bit: int) -> None:
    damaged = bytearray(FILE)
    damaged[at] ^= 1 << bit
    with pytest.raises((IntegrityError, IncompatibleError)):
        decode_manifest(damaged)


@given(length=st.integers(0, len(FILE) - 1))
@settings(deadline=None)
def test_a_file_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(IntegrityError):
        decode_manifest(FILE[:length])


def test_a_newer_format_is_called_newer() -> None:
    for decode in (decode_manifest, decode_summary):
        with pytest.raises(IncompatibleError, match=r"format 9.*upgrade"):
            decode(encode_manifest(MANIFEST, version=9))


def test_a_header_of_another_snapshot_is_refused() -> None:
    other = encode_manifest(
        Manifest(
            summary=SnapshotSummary(
                **{name: getattr(MANIFEST.summary, name) for name in SnapshotSummary.__struct_fields__}
                | {"checkpoint_uid": "xid"}
            ),
            metadata=MANIFEST.metadata,
            streams=MANIFEST.streams,
            chunks=MANIFEST.chunks,
            seed=MANIFEST.seed,
            page_index=MANIFEST.page_index,
        )
    )
    with pytest.raises(IntegrityError):
        decode_manifest(FILE[: head_length(FILE)] + other[head_length(other) :])


def test_a_chunk_that_does_not_exist_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        MANIFEST.chunks[1]


def file_of(header: bytes, body: bytes) -> bytes:
    """A manifest's file whose digests are right, as anybody can make it."""
    packed = ZstdCompressor().compress(body)
    fixed = manifest_format._FIXED.pack(manifest_format.MAGIC, 1, len(header), len(packed), blake3(packed).digest())
    return fixed + blake3(fixed + header).digest() + header + packed


def _with(**changes: object) -> bytes:
    """As anybody can write it: `encode_manifest` refuses what cannot be read."""
    summary = msgspec.structs.replace(MANIFEST.summary, **changes)
    encode = msgspec.msgpack.encode
    return file_of(encode(summary), encode(msgspec.structs.replace(MANIFEST, summary=summary)))


@pytest.mark.parametrize("name", ["../../tenant-b/packs/x", "", "a/b", ".."])
def test_a_name_that_leads_elsewhere_is_damage(name: str) -> None:
    """It would be read from another namespace, or written elsewhere on the node."""
    for strange in (_with(packs=(name,)), _with(writer=name)):
        for decode in (decode_manifest, decode_summary):
            with pytest.raises(IntegrityError, match="a pack or a writer that is none"):
                decode(strange)


def test_an_identity_that_is_none_is_damage() -> None:
    identity = Identity("team-a", "gromacs", 3, "main")
    msgspec.structs.force_setattr(identity, "id", "../gromacs")
    for decode in (decode_manifest, decode_summary):
        with pytest.raises(IntegrityError, match="another shape"):
            decode(_with(ref=SnapshotRef(identity, 7)))


@pytest.mark.parametrize("key", [
    "v1/team-a/snapshots/..x/0/main/0000000001.manifest",
    "v1/team-a/snapshots/x/" + "9" * 30 + "/main/0000000001.manifest",
    "v1/team-a/snapshots/x/\u0663/main/0000000001.manifest",
])  # fmt: skip
def test_a_file_of_somebody_else_is_no_generation(key: str) -> None:
    assert parse_generation_key(key) is None
