"""The file format of manifests.

The layout, all integers little-endian:

    8   magic: CEDSNAP and a zero byte
    4   format version
    4   length of the header
    8   length of the body
    32  BLAKE3 of the body
    32  BLAKE3 of everything above and of the header
    …   header: the summary, MessagePack
    …   body: the whole manifest, MessagePack, zstd

The header is first so that listing snapshots reads a few hundred bytes of each, not the tables. The version precedes
any digest: a reader must recognize a newer file that it cannot parse otherwise.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import zstandard
from blake3 import blake3

from cedana_sched.model.errors import IntegrityError, NewerFormatError, StoreError
from cedana_sched.model.manifest import FORMAT_VERSION, Manifest, SnapshotSummary
from cedana_sched.model.path_segment_validation import is_segment
from cedana_sched.store.backend import Buffer
from cedana_sched.store.decoding import UNREADABLE, decompress_bounded, require_bounded
from cedana_sched.store.manifest_consistency import require_consistent

MAGIC = b"CEDSNAP\0"
_FIXED = struct.Struct("<8sIIQ32s")
PREAMBLE_BYTES = _FIXED.size + 32
MOST_HEADER_BYTES = 16 << 20
"""Mostly names of packs: 40 bytes per 64 MiB."""
MOST_BODY_BYTES = 1 << 30
"""Packed, and unpacked: mostly page positions of every chunk, about 100 MiB per TiB."""
HEAD_BYTES = 16 << 10
"""Enough of a file to hold the header of nearly every manifest."""
_SHOWN = 60

_summaries = msgspec.msgpack.Decoder(SnapshotSummary)
_manifests = msgspec.msgpack.Decoder(Manifest)


class _Preamble(NamedTuple):
    header_length: int
    body_length: int
    body_digest: bytes
    header_digest: bytes


def encode_manifest(manifest: Manifest, *, version: int = FORMAT_VERSION) -> bytes:
    """Encode a manifest file.

    Raises:
        StoreError: readers would refuse it.
    """
    header, plain = msgspec.msgpack.encode(manifest.summary), msgspec.msgpack.encode(manifest)
    _require_readable(header, plain)
    body = zstandard.ZstdCompressor(level=3).compress(plain)
    fixed = _FIXED.pack(MAGIC, version, len(header), len(body), blake3(body).digest())
    return b"".join((fixed, blake3(fixed + header).digest(), header, body))


def manifest_digest_of(data: Buffer) -> str:
    """Return the digest of a manifest's file, sealed or not: BLAKE3 in hexadecimal."""
    return blake3(data).hexdigest()


def format_version_of(data: Buffer) -> int | None:
    """Return the format version of a file, sealed or not; None if it is not a manifest, or truncated."""
    if len(data) < PREAMBLE_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        return None
    version: int = _FIXED.unpack_from(data)[1]
    return version


def require_manifest(data: Buffer) -> None:
    """Raise if a file does not start as an unsealed manifest.

    Raises:
        IntegrityError: the file is something else, or truncated.
        NewerFormatError: written by a newer version.
    """
    _parse_preamble(data)


def head_length(head: Buffer) -> int:
    """Return the bytes from the start of the file that `decode_summary` needs, from the first `PREAMBLE_BYTES`."""
    return PREAMBLE_BYTES + _parse_preamble(head).header_length


def manifest_file_length(head: Buffer) -> int:
    """Return the size of the whole file, from its first `PREAMBLE_BYTES`."""
    preamble = _parse_preamble(head)
    return PREAMBLE_BYTES + preamble.header_length + preamble.body_length


def decode_summary(head: Buffer) -> SnapshotSummary:
    """Decode the header from the beginning of a manifest file.

    Raises:
        IntegrityError: damaged.
        NewerFormatError: written by a newer version.
    """
    preamble = _parse_preamble(head)
    header = bytes(memoryview(head)[PREAMBLE_BYTES : PREAMBLE_BYTES + preamble.header_length])
    if blake3(bytes(head[: _FIXED.size]) + header).digest() != preamble.header_digest:
        raise IntegrityError("the manifest's header is damaged")
    try:
        summary = _summaries.decode(header)
    except UNREADABLE as error:
        raise IntegrityError(f"the manifest's header has another shape: {error}") from error
    if strange := [name for name in (summary.writer, *summary.packs) if not is_segment(name)]:
        raise IntegrityError(f"the manifest names a pack or a writer that is none: {strange[0][:_SHOWN]!r}")
    return summary


def decode_manifest(data: Buffer) -> Manifest:
    """Decode a whole manifest file, every byte verified.

    Raises:
        IntegrityError: damaged.
        NewerFormatError: written by a newer version.
    """
    preamble = _parse_preamble(data)
    summary = decode_summary(data)
    body = memoryview(data)[PREAMBLE_BYTES + preamble.header_length :]
    if len(body) != preamble.body_length or blake3(body).digest() != preamble.body_digest:
        raise IntegrityError("the manifest's body is damaged")
    try:
        plain = decompress_bounded(body, MOST_BODY_BYTES)
        require_bounded(plain, MOST_HEADER_BYTES)
        manifest = _manifests.decode(plain)
    except (IntegrityError, *UNREADABLE) as error:
        raise IntegrityError(f"the manifest's body has another shape: {error}") from error
    if manifest.summary != summary:
        raise IntegrityError("the manifest's header and body are of different snapshots")
    require_consistent(manifest)
    return manifest


def _require_readable(header: bytes, plain: bytes) -> None:
    """Refuse to commit a manifest that is too large to read: its work would be lost at the restore."""
    try:
        require_lengths(len(header), len(plain))
        require_bounded(plain, MOST_HEADER_BYTES)
        _summaries.decode(header)
    except (IntegrityError, *UNREADABLE) as error:
        raise StoreError(
            f"the snapshot would have an unreadable manifest: {error}",
            remedy="save fewer processes together, or remove this workload's snapshots, among which its pages lie",
        ) from error


def _parse_preamble(data: Buffer) -> _Preamble:
    version = format_version_of(data)
    if version is None:
        raise IntegrityError("the file is not a manifest, or cut off")
    _, _, header_length, body_length, body_digest = _FIXED.unpack_from(data)
    if version > FORMAT_VERSION:
        sentence = f"the snapshot has format {version}, this program reads up to {FORMAT_VERSION}"
        raise NewerFormatError(sentence, remedy="upgrade cedana-sched on this machine")
    require_lengths(header_length, body_length)
    return _Preamble(header_length, body_length, body_digest, bytes(data[_FIXED.size : PREAMBLE_BYTES]))


def require_lengths(header: int, body: int) -> None:
    """Raise if a manifest's declared lengths, sealed or not, exceed the bounds: readers allocate that much.

    Raises:
        IntegrityError: a length exceeds its bound.
    """
    if header > MOST_HEADER_BYTES:
        raise IntegrityError(f"the manifest's header says that it is {header:,} bytes long")
    if body > MOST_BODY_BYTES:
        raise IntegrityError(f"the manifest's body says that it is {body:,} bytes long")
