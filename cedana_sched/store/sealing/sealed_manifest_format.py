"""The file format of sealed manifests: the file of `manifest_format` in two parts, each sealed for the snapshot's name.

All integers little-endian:

    8   magic, as of every manifest
    4   format version, with bit 16 set (`SEALED`): a program without seals takes it for a newer format
    4   length of the first part, sealed
    8   length of the second part, sealed
    32  name of the data key, in hexadecimal digits
    32  random bytes: the key of this file is derived from them and the data key
    …   first part: the manifest's head; a list of snapshots reads no more
    …   second part: the rest
"""

from __future__ import annotations

import secrets
import struct
from typing import NamedTuple

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.backend import Buffer
from cedana_sched.store.manifest_format import MAGIC, format_version_of, head_length, require_lengths
from cedana_sched.store.sealing.aead import TAG_BYTES, CountedKey, derive_key, encode_context
from cedana_sched.store.sealing.data_keys import DataKey

SEALED = 1 << 16
_FIXED = struct.Struct("<8sIIQ32s32s")
_HEAD, _REST = 0, 1


class Preamble(NamedTuple):
    """The bytes before the sealed parts; each part authenticates all of them."""

    head_bytes: int
    rest_bytes: int
    data_key: str
    salt: bytes
    raw: bytes


def is_sealed(data: Buffer) -> bool:
    """Return whether a file starts like a sealed manifest."""
    version = format_version_of(data)
    return version is not None and bool(version & SEALED)


def seal_manifest(key: DataKey, ref: SnapshotRef, plain: bytes) -> bytes:
    """Seal `plain`, a manifest's file by `format.encode_manifest`."""
    version = format_version_of(plain) or 0
    cut = head_length(plain)
    lengths = cut + TAG_BYTES, len(plain) - cut + TAG_BYTES
    salt = secrets.token_bytes(32)
    raw = _FIXED.pack(MAGIC, version | SEALED, *lengths, key.name.encode(), salt)
    own, place = _derive_manifest_key(key, salt), _seal_context(ref, raw)
    return b"".join((raw, own.seal(_HEAD, plain[:cut], place), own.seal(_REST, plain[cut:], place)))


def read_preamble(data: Buffer) -> Preamble:
    """Parse the first bytes of a sealed manifest.

    Raises:
        IntegrityError: the preamble is truncated, or names no data key.
    """
    if len(data) < _FIXED.size:
        raise IntegrityError("the file is a sealed manifest that is cut off")
    _, _, head, rest, name, salt = _FIXED.unpack_from(data)
    require_lengths(head, rest)
    data_key = name.decode("ascii", "replace")
    if not layout.is_data_key_name(data_key):
        raise IntegrityError("the sealed manifest names no data key")
    return Preamble(head, rest, data_key, salt, bytes(data[: _FIXED.size]))


def sealed_head_length(data: Buffer) -> int:
    """Return the bytes of the file that `open_head` needs, from its start."""
    return _FIXED.size + read_preamble(data).head_bytes


def sealed_file_length(data: Buffer) -> int:
    """Return the size of the whole file; unauthenticated until the head is opened."""
    return sealed_head_length(data) + read_preamble(data).rest_bytes


def open_head(key: DataKey, ref: SnapshotRef, data: Buffer) -> bytes:
    """Open the manifest's head, for `format.decode_summary`.

    Raises:
        IntegrityError: the file was changed, truncated, or sealed for another snapshot.
    """
    preamble = read_preamble(data)
    sealed = memoryview(data)[_FIXED.size : _FIXED.size + preamble.head_bytes]
    return _derive_manifest_key(key, preamble.salt).open(_HEAD, sealed, _seal_context(ref, preamble.raw))


def open_manifest(key: DataKey, ref: SnapshotRef, data: Buffer) -> bytes:
    """Open the whole manifest, for `format.decode_manifest`.

    Raises:
        IntegrityError: the file was changed, truncated, or sealed for another snapshot.
    """
    preamble = read_preamble(data)
    rest = memoryview(data)[_FIXED.size + preamble.head_bytes :]
    opened = _derive_manifest_key(key, preamble.salt).open(_REST, rest, _seal_context(ref, preamble.raw))
    return open_head(key, ref, data) + opened


def _derive_manifest_key(key: DataKey, salt: bytes) -> CountedKey:
    return CountedKey(derive_key(key.secret, "manifest", salt))


def _seal_context(ref: SnapshotRef, preamble: bytes) -> bytes:
    return encode_context("manifest", str(ref), preamble)
