"""Committed snapshots: the single interpretation of the snapshot folders.

A client that may write there can create any number of manifests, with headers of any permitted size: reads of one
workload are bounded to what fits in memory. A listing of a whole folder, as by commands, is unbounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import structlog

from cedana_sched.model.errors import CedanaSchedError, IntegrityError, NewerFormatError, NotFoundError, UnsealedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import Manifest, SnapshotSummary
from cedana_sched.store import layout, manifest_format
from cedana_sched.store.backend import Backend, Buffer, Entry, MissingObjectError
from cedana_sched.store.generation_names import (
    Generations,
    newest_generations,
    parse_generations,
    too_many_generations_remedy,
)
from cedana_sched.store.sealing.seal_selection import SealSelection

R = TypeVar("R")

_log = structlog.get_logger(__name__)
MOST_REMEMBERED = 10_000
MOST_REMEMBERED_BYTES = 64 << 20
"""Bytes of packed headers; 1 KiB each is usual."""
MOST_LONG_BYTES = 128 << 20
"""Bytes of headers longer than `HEAD_BYTES` that are read together for one workload, whose dump waits for it."""
_READERS = 8
_SHOWN = 20
_USUAL_BYTES = 1 << 20
"""Bytes of a manifest read at once; a longer one is read whole once its head is verified, up to the length in the
head."""
_REMEDY = "restore an older generation, or remove this one"


class _SizedSummary(NamedTuple):
    """A header, and its size in the manifest."""

    summary: SnapshotSummary
    length: int


class _ReadResult(NamedTuple):
    """Result of reading one generation: its header, None if unreadable, and the bound of its size."""

    ref: SnapshotRef
    summary: SnapshotSummary | None
    length: int


class Catalogue:
    """Reads committed manifests. Summaries are cached: a manifest is immutable."""

    def __init__(self, backend: Backend, seals: SealSelection | None = None) -> None:
        """Create a catalogue; `seals` opens sealed manifests; without it none is sealed."""
        self._backend = backend
        self._seals = seals or SealSelection(backend)
        self._lock = threading.Lock()
        self._summaries: dict[Entry, _SizedSummary] = {}
        self._remembered_bytes = 0

    def list_generations(self, folder: str) -> Generations:
        """Return all generations below a snapshots folder, or below one identity's."""
        return parse_generations(self._backend.list(folder))

    def newest_generations_of(self, identity: Identity) -> Generations:
        """Return the newest generations of an identity, as many as fit in memory."""
        return newest_generations(identity, lambda: self._backend.list(layout.identity_folder(identity)))

    def files_of_generation(self, ref: SnapshotRef) -> Generations:
        """Return the files of one generation, ignoring all others."""
        return parse_generations(
            entry
            for entry in self._backend.list(layout.identity_folder(ref.identity))
            if (file := layout.parse_generation_key(entry.key)) is not None and file.ref == ref
        )

    def read_summary(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary:
        """Read the header of a manifest.

        Raises:
            NotFoundError: removed meanwhile.
            IntegrityError: damaged.
            NewerFormatError: written by a newer version.
            SealedError: sealed, and its key is not available.
            UnsealedError: not sealed, and it must be.
        """
        return self._sized_summary_of(ref, entry).summary

    def _sized_summary_of(self, ref: SnapshotRef, entry: Entry) -> _SizedSummary:
        with self._lock:
            known = self._summaries.get(entry)
        if known is not None:
            return known
        try:
            read = _retry_if_damaged(lambda: self._read_summary(ref, entry))
        except (IntegrityError, NewerFormatError, MissingObjectError) as error:
            raise self._explain_error(ref, error) from error
        self._require_ref(ref, read.summary)
        self._remember_summary(entry, read)
        return read

    def _remember_summary(self, entry: Entry, read: _SizedSummary) -> None:
        with self._lock:
            if entry in self._summaries:  # another thread has read it too
                return
            self._summaries[entry] = read
            self._remembered_bytes += read.length
            while len(self._summaries) > MOST_REMEMBERED or self._remembered_bytes > MOST_REMEMBERED_BYTES:
                self._remembered_bytes -= self._summaries.pop(next(iter(self._summaries))).length

    def _read_summary(self, ref: SnapshotRef, entry: Entry) -> _SizedSummary:
        head = self._read_head(entry, manifest_format.HEAD_BYTES)
        summary = manifest_format.decode_summary(self._seals.open_head(ref, head))
        return _SizedSummary(summary, self._seals.head_length(head))

    def _read_head(self, entry: Entry, usual_bytes: int) -> Buffer:
        """Read the beginning of a manifest, at least its head."""
        head = self._backend.get_range(entry.key, 0, usual_bytes)
        if (length := self._seals.head_length(head)) > len(head):
            head = self._backend.get_range(entry.key, 0, length)
        return head

    def readable_summaries(self, generations: Generations) -> list[SnapshotSummary]:
        """Return the readable summaries, oldest first; the others are logged, and stay."""
        found = [looked.summary for looked in self._newest_first(generations) if looked.summary is not None]
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

    def newest_readable_summaries(self, generations: Generations) -> Iterator[SnapshotSummary]:
        """Yield the readable summaries, greatest number first; long headers only as many as fit in memory."""
        left = MOST_LONG_BYTES
        for looked in self._newest_first(generations):
            if looked.summary is not None:
                yield looked.summary
            left -= max(0, looked.length - manifest_format.HEAD_BYTES)
            if left < 0:
                _log.warning(
                    "generations_passed_over",
                    older_than=str(looked.ref),
                    remedy=too_many_generations_remedy(looked.ref.identity),
                )
                return

    def _newest_first(self, generations: Generations) -> Iterator[_ReadResult]:
        """Yield the result of reading each, a few read ahead."""
        rows = sorted(generations.committed.items(), reverse=True)
        with ThreadPoolExecutor(min(_READERS, max(1, len(rows))), thread_name_prefix="store-list") as pool:
            for at in range(0, len(rows), _READERS):
                yield from pool.map(lambda row: self._read_generation(*row), rows[at : at + _READERS])

    def _read_generation(self, ref: SnapshotRef, entry: Entry) -> _ReadResult:
        summary = self.summary_if_readable(ref, entry)
        with self._lock:
            known = self._summaries.get(entry)
        return _ReadResult(ref, summary, known.length if known else min(entry.size, manifest_format.MOST_HEADER_BYTES))

    def summary_if_readable(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary | None:
        """Return the header; None, with a log line, if it is damaged, newer than this program or not sealed."""
        try:
            return self.summary_unless_removed(ref, entry)
        except UnsealedError as error:
            _log.warning("snapshot_unsealed", snapshot=str(ref), error=str(error))
        except (IntegrityError, NewerFormatError):
            pass  # logged already
        return None

    def summary_unless_removed(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary | None:
        """Return the header for a restore that would otherwise start cold; None if it was removed meanwhile.

        Raises:
            IntegrityError: damaged; logged as well.
            NewerFormatError: written by a newer version; logged as well.
            SealedError: sealed, and its key is not available.
            UnsealedError: not sealed, and it must be: an admin can permit it.
        """
        try:
            return self.read_summary(ref, entry)
        except NotFoundError:
            return None
        except (IntegrityError, NewerFormatError) as error:
            _log.warning("snapshot_unreadable", snapshot=str(ref), error=str(error))
            raise

    def read_manifest(self, ref: SnapshotRef) -> Manifest:
        """Read and verify a whole manifest; raises like `manifest_and_digest`."""
        return self.manifest_and_digest(ref)[0]

    def manifest_and_digest(self, ref: SnapshotRef) -> tuple[Manifest, str]:
        """Read and verify a whole manifest; return it with its file's digest.

        Raises:
            NotFoundError: the snapshot does not exist.
            IntegrityError: damaged.
            NewerFormatError: written by a newer version.
            SealedError: sealed, and its key is not available.
            UnsealedError: not sealed, and it must be.
        """
        entry = self.files_of_generation(ref).committed.get(ref)
        if entry is None:
            raise _not_found(ref, self.newest_generations_of(ref.identity))
        try:
            manifest, digest = _retry_if_damaged(lambda: self._read_manifest(ref, entry))
        except (IntegrityError, NewerFormatError, MissingObjectError) as error:
            raise self._explain_error(ref, error) from error
        self._require_ref(ref, manifest.summary)
        return manifest, digest

    def _read_manifest(self, ref: SnapshotRef, entry: Entry) -> tuple[Manifest, str]:
        data = self._read_head(entry, _USUAL_BYTES)
        length = self._seals.file_length(ref, data)
        if max(length, entry.size) > len(data):
            data = self._backend.get(entry.key, at_most=length)
        plain = self._seals.open_manifest(ref, data)
        return manifest_format.decode_manifest(plain), manifest_format.manifest_digest_of(data)

    def _explain_error(self, ref: SnapshotRef, error: CedanaSchedError) -> CedanaSchedError:
        """Add the snapshot's name. A missing file is damage only if the snapshot was not removed meanwhile."""
        sentence = f"snapshot {ref}: {error.message}"
        if isinstance(error, NewerFormatError):
            return NewerFormatError(sentence, remedy=error.remedy)
        if isinstance(error, MissingObjectError) and ref not in self.files_of_generation(ref).committed:
            return _not_found(ref, self.newest_generations_of(ref.identity))
        return IntegrityError(sentence, remedy=_REMEDY)

    def _require_ref(self, ref: SnapshotRef, summary: SnapshotSummary) -> None:
        """Require the manifest's own name: under another one, a workload would get another workload's memory."""
        if summary.ref != ref:
            sentence = f"snapshot {ref}: its manifest is that of {summary.ref}"
            raise IntegrityError(sentence, remedy="files were moved in the store; remove this one")


def _retry_if_damaged(read: Callable[[], R]) -> R:
    """Read again before bytes count as damaged: the transfer may have corrupted them."""
    try:
        return read()
    except IntegrityError as error:
        _log.info("manifest_read_again", error=error.message)
        return read()


def _not_found(ref: SnapshotRef, generations: Generations) -> NotFoundError:
    newest = sorted(one.generation for one in generations.committed)
    more = f"{len(newest) - _SHOWN} older, " if len(newest) > _SHOWN else ""
    known = more + ", ".join(map(str, newest[-_SHOWN:])) or "none"
    return NotFoundError("snapshot", str(ref), "does not exist", remedy=f"generations there are: {known}")
