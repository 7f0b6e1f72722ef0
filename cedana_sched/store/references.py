"""Packs and page indexes that a namespace's committed manifests name, cached between collections.

A manifest is immutable, so its references are read once. A collection writes them to the object `references`, by the
key, size and date of each manifest, and the next one, on any node, reads only new manifests. The object is a cache: if
lost or damaged, all manifests are read again. It has the name of each pack once, and numbers of packs in columns,
because generations of one workload name the same thousands of packs.

The object is not sealed. A client that can write to the store can cause referenced packs to be collected by a forged
object, as well as by a tombstone (`removed`) beside each manifest: sealing it alone would not prevent that. Its
contents decide only what is spared, so an attacker gains no more than data loss, which verification and every read
detect.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import msgspec
import structlog
import zstandard
from blake3 import blake3

from cedana_sched.model.errors import CedanaSchedError, IncompatibleError, IntegrityError, NotFoundError, UnsealedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry, MissingObjectError
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.decoding import UNREADABLE, decompress_bounded
from cedana_sched.store.generation_names import Generations

MOST_BYTES = 32 << 20
"""Bytes of the cache, packed and unpacked: any client that can write to the store may have written it. Enough for
500 generations of 512 GiB, 16 MiB of which are numbers."""
MOST_REMEMBERED = 100_000
"""Manifests of one namespace in the cache; those beyond are read each time."""
MOST_PACKS = 250_000
"""Packs in the cache: 16 TiB. Manifests that name others are read each time."""
_TEXT_BYTES, _ROW_BYTES = 5, 32
"""Bytes of MessagePack beside each text, and per manifest beside texts and numbers."""
_READERS = 8
_FEW = 32
"""Up to so many are read sequentially: usually the few that are new since the last collection."""
_DIGEST_BYTES = 32

_log = structlog.get_logger(__name__)


class ManifestReferences(msgspec.Struct, frozen=True):
    """References of one manifest."""

    packs: tuple[str, ...]
    page_index: str | None


_Key = Annotated[str, msgspec.Meta(max_length=layout.LONGEST_KEY)]


class _ReferencesRow(msgspec.Struct, frozen=True, array_like=True):
    key: _Key
    size: int
    modified: float
    packs: bytes
    """A column of u32: numbers of packs in `_CachedReferences.packs`."""
    page_index: _Key | None


class _CachedReferences(msgspec.Struct, frozen=True, array_like=True):
    packs: Annotated[tuple[layout.PackName, ...], msgspec.Meta(max_length=MOST_PACKS)]
    rows: Annotated[tuple[_ReferencesRow, ...], msgspec.Meta(max_length=MOST_REMEMBERED)]


class References(msgspec.Struct, frozen=True):
    """References of a namespace's committed manifests."""

    packs: set[str]
    page_indexes: set[str]
    unreadable: tuple[str, ...]
    """Unreadable manifests, which may name anything."""


_decoder = msgspec.msgpack.Decoder(_CachedReferences)


def read_references(backend: Backend, catalogue: Catalogue, namespace: str, generations: Generations) -> References:
    """Read the manifests that are not cached, and cache them.

    Raises:
        StoreUnavailableError: a manifest could not be read now.
    """
    known = _read_cache(backend, namespace)
    rows = generations.committed
    fresh = _read_manifests(catalogue, [(ref, entry) for ref, entry in rows.items() if entry not in known])
    needed = {entry: named for entry in rows.values() if (named := known.get(entry) or fresh.get(entry)) is not None}
    if needed.keys() != known.keys():
        _write_cache(backend, namespace, needed)
    packs: set[str] = set()
    for named in needed.values():
        packs.update(named.packs)
    return References(
        packs,
        {named.page_index for named in needed.values() if named.page_index},
        tuple(str(ref) for ref, entry in rows.items() if entry in fresh and fresh[entry] is None),
    )


def _read_manifests(
    catalogue: Catalogue, rows: list[tuple[SnapshotRef, Entry]]
) -> dict[Entry, ManifestReferences | None]:
    """Return the references of these manifests; None for an unreadable one, and no entry for one removed meanwhile."""
    names: dict[str, str] = {}  # generations of a workload name the same packs: one object for each

    def read(row: tuple[SnapshotRef, Entry]) -> tuple[Entry, ManifestReferences | None] | None:
        ref, entry = row
        try:
            summary = catalogue.read_summary(ref, entry)
        except NotFoundError:
            return None
        except (IntegrityError, IncompatibleError, UnsealedError):
            return entry, None
        return entry, ManifestReferences(
            tuple(names.setdefault(name, name) for name in summary.packs), summary.page_index
        )

    if len(rows) <= _FEW:
        found: Iterable[tuple[Entry, ManifestReferences | None] | None] = [read(row) for row in rows]
    else:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="store-references") as pool:
            found = list(pool.map(read, rows))
    return dict(one for one in found if one is not None)


def _read_cache(backend: Backend, namespace: str) -> dict[Entry, ManifestReferences]:
    try:
        data = backend.get(layout.references_key(namespace), at_most=MOST_BYTES)
    except MissingObjectError:
        return {}
    except IntegrityError as error:
        _log.warning("references_read_anew", namespace=namespace, error=str(error))
        return {}
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if blake3(body).digest() != digest:
        _log.warning("references_read_anew", namespace=namespace, reason="they are damaged")
        return {}
    try:
        return _decode_cache(_decoder.decode(decompress_bounded(body, MOST_BYTES)))
    except (IntegrityError, *UNREADABLE) as error:  # of another version
        _log.warning("references_read_anew", namespace=namespace, error=str(error))
        return {}


def _decode_cache(memory: _CachedReferences) -> dict[Entry, ManifestReferences]:
    """Decode the cache; raises IntegrityError if a number refers to no pack."""
    try:
        return {
            Entry(row.key, row.size, row.modified): ManifestReferences(
                tuple(map(memory.packs.__getitem__, memoryview(row.packs).cast("I"))), row.page_index
            )
            for row in memory.rows
        }
    except (IndexError, TypeError) as error:
        raise IntegrityError(f"a column cannot be of packs: {error}") from error


def _encode_cache(needed: dict[Entry, ManifestReferences]) -> _CachedReferences:
    """Encode as many manifests as a reader accepts."""
    numbers: dict[str, int] = {}
    rows: list[_ReferencesRow] = []
    room = MOST_BYTES * 15 // 16  # incompressible data becomes a little longer
    for entry, named in sorted(needed.items())[:MOST_REMEMBERED]:
        fresh = [name for name in dict.fromkeys(named.packs) if name not in numbers]
        texts = (entry.key, named.page_index or "", *fresh)
        size = sum(_TEXT_BYTES + len(text.encode()) for text in texts) + 4 * len(named.packs) + _ROW_BYTES
        is_ours = all(map(layout.may_be_pack_name, fresh)) and max(map(len, texts)) <= layout.LONGEST_KEY
        if size > room or len(numbers) + len(fresh) > MOST_PACKS or not is_ours:
            continue
        room -= size
        numbers.update(zip(fresh, range(len(numbers), len(numbers) + len(fresh)), strict=True))
        column = array("I", map(numbers.__getitem__, named.packs)).tobytes()
        rows.append(_ReferencesRow(*entry, column, named.page_index))
    return _CachedReferences(tuple(numbers), tuple(rows))


def _write_cache(backend: Backend, namespace: str, needed: dict[Entry, ManifestReferences]) -> None:
    """Write the cache, best-effort: what is not cached is read again."""
    key = layout.references_key(namespace)
    try:
        if not needed:
            backend.delete([key])
            return
        body = zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(_encode_cache(needed)))
        backend.put(key, blake3(body).digest() + body)
    except CedanaSchedError as error:
        _log.warning("references_not_remembered", namespace=namespace, error=str(error))
