"""The object with a snapshot's page fingerprints, beside its manifest, and its copy on the node.

Not required for a restore: if the object is lost or damaged, the next generation is written in full, without an error.
The node's copy is written along with the object, or fetched while the workload runs, so that nothing is fetched while
the workload is frozen.
"""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import structlog
from blake3 import blake3

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import PageIndex
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, MissingObjectError, Sink
from cedana_sched.store.page_classification import FINGERPRINT_BYTES
from cedana_sched.store.page_fingerprint_cache import FingerprintCache, NewCopy
from cedana_sched.store.sealing.seal import NO_SEAL, IndexSeal, Seal, stored_blocks

_FETCH_BYTES = 8 << 20
_FETCHES = 4
_ATTEMPTS = 2
"""The first damage may be a transfer error."""

_log = structlog.get_logger(__name__)


class PageIndexWriter:
    """Writes fingerprints of all streams as they arrive, without buffering all of them."""

    def __init__(self, backend: Backend, key: str, copy: NewCopy | None, seal: IndexSeal) -> None:
        self.key = key
        self._backend = backend
        self._seal = seal
        self._copy = copy
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._hasher = blake3()
        self._blocks = array("I")
        self._length = 0

    def append(self, stream: int, fingerprints: bytes) -> None:
        with self._lock:
            if self._sink is None:
                self._sink = self._seal.wrap_sink(self._backend.open_sink(self.key))
            self._sink.write(fingerprints)
            if self._copy:
                self._copy.write(fingerprints)
            self._hasher.update(fingerprints)
            self._length += len(fingerprints)
            pages = len(fingerprints) // FINGERPRINT_BYTES
            if self._blocks and self._blocks[-2] == stream:
                self._blocks[-1] += pages
            else:
                self._blocks.extend((stream, pages))

    def finish(self) -> PageIndex | None:
        """Make the object durable; None if no page was stored."""
        with self._lock:
            if self._sink is None:
                return None
            sink, self._sink = self._sink, None
            sink.finish()
            if self._copy:
                self._copy.finish()
            return PageIndex(self._length, self._hasher.digest(), self._blocks.tobytes())

    def abort(self) -> None:
        with self._lock:
            if self._sink is not None:
                self._sink.abort()
                self._sink = None
            if self._copy:
                self._copy.discard()


def load_page_index(
    backend: Backend, cache: FingerprintCache, ref: SnapshotRef, writer: str, index: PageIndex, seal: Seal = NO_SEAL
) -> mmap.mmap | None:
    """Return the verified fingerprints; from the node's cache, else fetched and cached. None if they are lost.

    The node's copy is not sealed: the staged memory of the same workloads is on that disk too.

    Raises:
        StoreError: the store cannot be read.
    """
    if (copy := cache.open(ref, writer)) is not None:
        with copy:
            flat = _map_verified(copy.fileno(), index)
        if flat is not None:
            return flat
        cache.delete_damaged_copy(ref, writer)
    blocks = _BlockReader(backend, layout.pages_key(ref, writer), index.length, seal.index_seal(ref, writer))
    for _ in range(_ATTEMPTS):
        try:
            if (flat := _fetch_index(blocks, cache, ref, writer, index)) is not None:
                return flat
        except MissingObjectError:
            return None
        except (OSError, IntegrityError) as error:
            _log.warning("page_index_not_fetched", snapshot=str(ref), error=str(error))
            return None
    return None


def _fetch_index(
    blocks: _BlockReader, cache: FingerprintCache, ref: SnapshotRef, writer: str, index: PageIndex
) -> mmap.mmap | None:
    if (kept := cache.new_copy(ref, writer, index.length)) is None:
        with cache.open_scratch_file() as file:
            for block in blocks:
                file.write(block)
            return _map_verified(file.fileno(), index)
    try:
        for block in blocks:
            kept.write(block)
        flat = _map_verified(kept.descriptor, index) if kept.descriptor is not None else None
    except BaseException:
        kept.discard()
        raise
    if flat is None:
        kept.discard()
    else:
        kept.finish()
    return flat


class _BlockReader:
    """Yields the fingerprints of `length` bytes in order, some blocks ahead."""

    def __init__(self, backend: Backend, key: str, length: int, seal: IndexSeal) -> None:
        self._backend = backend
        self._key = key
        self._length = length
        self._seal = seal

    def __iter__(self) -> Iterator[Buffer]:
        places = enumerate(stored_blocks(self._seal, self._length))
        with ThreadPoolExecutor(_FETCHES, thread_name_prefix="store-index") as pool:

            def fetch(number: int, place: tuple[int, int]) -> Future[Buffer]:
                return pool.submit(self._fetch_block, number, place)

            ahead = deque(fetch(*one) for one in islice(places, _FETCHES))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(fetch(*one) for one in islice(places, 1))

    def _fetch_block(self, number: int, place: tuple[int, int]) -> Buffer:
        return self._seal.open(number, self._backend.get_range(self._key, *place))


def _map_verified(descriptor: int, index: PageIndex) -> mmap.mmap | None:
    """Map the file if its bytes match the index. Reads them first: a failing disk is an error, not a SIGBUS."""
    if os.fstat(descriptor).st_size != index.length or not index.length:
        return None
    hasher = blake3()
    try:
        for offset in range(0, index.length, _FETCH_BYTES):
            hasher.update(os.pread(descriptor, _FETCH_BYTES, offset))
    except OSError as error:
        _log.warning("page_index_unreadable_on_node", error=str(error))
        return None
    if hasher.digest() != index.digest:
        return None
    return mmap.mmap(descriptor, index.length, prot=mmap.PROT_READ)
