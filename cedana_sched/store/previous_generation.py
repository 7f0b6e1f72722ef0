"""The newest committed generation of an identity, whose pages and chunks the next one reuses.

An optimization only: whatever cannot be read is not reused, without an error.
"""

from __future__ import annotations

import sys
from array import array

import structlog

from cedana_sched.model.errors import (
    CommitConflictError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    UnsealedError,
)
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import ZERO_CHUNK, Manifest
from cedana_sched.store.backend import Backend
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.chunk_pipeline import ChunkLocation
from cedana_sched.store.page_classification import KnownPages, PageSegmentLookup
from cedana_sched.store.page_fingerprint_cache import FingerprintCache
from cedana_sched.store.page_index import load_page_index
from cedana_sched.store.sealing.seal import NO_SEAL, Seal

LEAST_LIVE_SHARE = 0.5
"""Chunks of which the previous generation uses a smaller share are written anew: a restore reads whole chunks, and
would otherwise read ever more bytes for ever fewer pages."""

_log = structlog.get_logger(__name__)


class PreviousGeneration:
    """The loaded previous generation. `pages` finds a page, `location` locates its chunk.

    Loaded while the workload is frozen, so per-chunk objects are created on demand only.
    """

    def __init__(self, manifest: Manifest, pages: KnownPages, reusable: list[bool]) -> None:
        self.pages = pages
        self._manifest = manifest
        self._reusable = reusable
        self._locations: dict[int, ChunkLocation] = {}
        first_eight_bytes = memoryview(manifest.chunks.digests).cast("Q")[::4]
        self._numbers = dict(zip(first_eight_bytes, range(len(first_eight_bytes)), strict=True))

    def chunk_location(self, chunk: int) -> ChunkLocation:
        """Return the location of a chunk of the previous manifest by its number."""
        found = self._locations.get(chunk)
        if found is None:
            row = self._manifest.chunks[chunk]
            found = self._locations[chunk] = ChunkLocation(row, self._manifest.summary.packs[row.pack])
        return found

    def find_reusable_chunk(self, digest: bytes) -> ChunkLocation | None:
        """Return the location of the chunk of this digest, if it may be referenced again."""
        number = self._numbers.get(int.from_bytes(digest[:8], sys.byteorder))
        if number is None or not self._reusable[number]:
            return None
        location = self.chunk_location(number)
        return location if location.chunk.digest == digest else None


def load_previous_manifest(catalogue: Catalogue, ref: SnapshotRef | None) -> Manifest | None:
    """Read the manifest of the previous generation; None if there is none that is readable."""
    if ref is None:
        return None
    try:
        return catalogue.read_manifest(ref)
    except (IntegrityError, IncompatibleError, NotFoundError, UnsealedError) as error:
        _log.warning("previous_generation_unreadable", snapshot=str(ref), error=str(error))
        return None


def load_previous(
    backend: Backend, manifest: Manifest | None, cache: FingerprintCache, unusable_packs: set[str], seal: Seal = NO_SEAL
) -> PreviousGeneration | None:
    """Load what a snapshot under `seal` can reuse, given the packs that are condemned."""
    if manifest is None or manifest.page_index is None or manifest.data_key != seal.data_key:
        return None
    flat = load_page_index(backend, cache, manifest.ref, manifest.summary.writer, manifest.page_index, seal)
    if flat is None:
        _log.warning("page_index_lost", snapshot=str(manifest.ref))
        return None
    reusable = reusable_chunks(manifest, unusable_packs)
    blocks = memoryview(manifest.page_index.blocks).cast("I")
    places = PageSegmentLookup([stream.segments for stream in manifest.streams], blocks, reusable)
    return PreviousGeneration(manifest, KnownPages(flat, places), reusable)


def reusable_chunks(manifest: Manifest, unusable_packs: set[str]) -> list[bool]:
    """Return per chunk whether the next generation may reference it."""
    live = array("Q", bytes(8 * len(manifest.chunks)))
    for stream in manifest.streams:
        segments = stream.segments
        for chunk, length in zip(
            memoryview(segments.chunks).cast("I"), memoryview(segments.lengths).cast("Q"), strict=True
        ):
            if chunk != ZERO_CHUNK:
                live[chunk] += length
    chunks = manifest.chunks
    sizes = memoryview(chunks.sizes).cast("I")
    packs = memoryview(chunks.packs).cast("I")
    bad = {number for number, name in enumerate(manifest.summary.packs) if name in unusable_packs}
    return [
        live[number] >= sizes[number] * LEAST_LIVE_SHARE and packs[number] not in bad for number in range(len(chunks))
    ]


def require_unused_number(catalogue: Catalogue, ref: SnapshotRef) -> None:
    """Raise if the snapshot's number is used up.

    Raises:
        CommitConflictError: another writer committed it, or it was removed since.
    """
    generations = catalogue.files_of_generation(ref)
    if ref in generations.committed or ref in generations.removed:
        raise CommitConflictError(f"generation {ref} exists already", remedy="use it, or begin the next one")
