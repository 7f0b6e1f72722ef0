"""Which snapshots are committed: the one reading of the snapshot folders that everybody else uses.

Whoever may write there may lay any number of manifests, with headers of any size that one may have: no more is kept of
those of one workload than fits memory. A whole folder, as commands list it, is read without a bound.
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
from cedana_sched.store import format as manifest_format
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, Entry, MissingObjectError
from cedana_sched.store.generations import Generations, generations_of, newest_generations, remedy
from cedana_sched.store.sealing.seals import Seals

R = TypeVar("R")

_log = structlog.get_logger(__name__)
MOST_REMEMBERED = 10_000
MOST_REMEMBERED_BYTES = 64 << 20
"""Of headers, packed; 1 KiB each is usual."""
MOST_LONG_BYTES = 128 << 20
"""Of headers longer than `HEAD_BYTES` that are read together of one workload: its dump waits for that."""
_READERS = 8
_SHOWN = 20
_USUAL_BYTES = 1 << 20
"""So much of a manifest is read at once; a longer one whole, once its head is sound, and as long as that says."""
_REMEDY = "restore an older generation, or remove this one"


class _Read(NamedTuple):
    """A header, and how many bytes of its manifest it takes."""

    summary: SnapshotSummary
    length: int


class _Looked(NamedTuple):
    """What was found at a number: its header, None for one that cannot be read, and how many bytes it may have."""

    ref: SnapshotRef
    summary: SnapshotSummary | None
    length: int


class Catalogue:
    """Reads what is committed. Summaries are remembered: a manifest never changes."""

    def __init__(self, backend: Backend, seals: Seals | None = None) -> None:
        """`seals` opens the manifests; without it none is sealed."""
        self._backend = backend
        self._seals = seals or Seals(backend)
        self._lock = threading.Lock()
        self._summaries: dict[Entry, _Read] = {}
        self._remembered_bytes = 0

    def generations(self, folder: str) -> Generations:
        """Everything below a snapshots folder, or below one identity's."""
        return generations_of(self._backend.list(folder))

    def of(self, identity: Identity) -> Generations:
        """The newest of an identity, as many as fit memory."""
        return newest_generations(identity, lambda: self._backend.list(layout.identity_folder(identity)))

    def at(self, ref: SnapshotRef) -> Generations:
        """What there is of one number, whatever lies beside it."""
        return generations_of(
            entry
            for entry in self._backend.list(layout.identity_folder(ref.identity))
            if (file := layout.parse_generation_key(entry.key)) is not None and file.ref == ref
        )

    def summary(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary:
        """The header of a manifest.

        Raises:
            NotFoundError: removed in the meantime.
            IntegrityError: damaged.
            NewerFormatError: written by a newer version.
            SealedError: sealed, and its key is not here.
            UnsealedError: not sealed, and it must be.
        """
        return self._summary(ref, entry).summary

    def _summary(self, ref: SnapshotRef, entry: Entry) -> _Read:
        with self._lock:
            known = self._summaries.get(entry)
        if known is not None:
            return known
        try:
            read = _twice(lambda: self._read_summary(ref, entry))
        except (IntegrityError, NewerFormatError, MissingObjectError) as error:
            raise self._explained(ref, error) from error
        self._must_be(ref, read.summary)
        self._remember(entry, read)
        return read

    def _remember(self, entry: Entry, read: _Read) -> None:
        with self._lock:
            if entry in self._summaries:  # another thread has read it as well
                return
            self._summaries[entry] = read
            self._remembered_bytes += read.length
            while len(self._summaries) > MOST_REMEMBERED or self._remembered_bytes > MOST_REMEMBERED_BYTES:
                self._remembered_bytes -= self._summaries.pop(next(iter(self._summaries))).length

    def _read_summary(self, ref: SnapshotRef, entry: Entry) -> _Read:
        head = self._read_head(entry, manifest_format.HEAD_BYTES)
        summary = manifest_format.decode_summary(self._seals.open_head(ref, head))
        return _Read(summary, self._seals.head_length(head))

    def _read_head(self, entry: Entry, usual_bytes: int) -> Buffer:
        """The beginning of a manifest, at least its head."""
        head = self._backend.get_range(entry.key, 0, usual_bytes)
        if (length := self._seals.head_length(head)) > len(head):
            head = self._backend.get_range(entry.key, 0, length)
        return head

    def readable(self, generations: Generations) -> list[SnapshotSummary]:
        """The summaries of those that can be read, oldest first; the others are logged, and stay."""
        found = [looked.summary for looked in self._newest_first(generations) if looked.summary is not None]
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

    def newest_readable(self, generations: Generations) -> Iterator[SnapshotSummary]:
        """Those that can be read, the greatest number first; of long headers no more than fit memory."""
        left = MOST_LONG_BYTES
        for looked in self._newest_first(generations):
            if looked.summary is not None:
                yield looked.summary
            left -= max(0, looked.length - manifest_format.HEAD_BYTES)
            if left < 0:
                _log.warning("generations_passed_over", older_than=str(looked.ref), remedy=remedy(looked.ref.identity))
                return

    def _newest_first(self, generations: Generations) -> Iterator[_Looked]:
        """A look at each; a few are read ahead."""
        rows = sorted(generations.committed.items(), reverse=True)
        with ThreadPoolExecutor(min(_READERS, max(1, len(rows))), thread_name_prefix="store-list") as pool:
            for at in range(0, len(rows), _READERS):
                yield from pool.map(lambda row: self._look(*row), rows[at : at + _READERS])

    def _look(self, ref: SnapshotRef, entry: Entry) -> _Looked:
        summary = self.summary_if_readable(ref, entry)
        with self._lock:
            known = self._summaries.get(entry)
        return _Looked(ref, summary, known.length if known else min(entry.size, manifest_format.MOST_HEADER_BYTES))

    def summary_if_readable(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary | None:
        """The header; None, and a line in the log, where it is damaged, newer than this program or not sealed."""
        try:
            return self.summary_to_continue(ref, entry)
        except UnsealedError as error:
            _log.warning("snapshot_unsealed", snapshot=str(ref), why=str(error))
        except (IntegrityError, NewerFormatError):
            pass  # it is in the log
        return None

    def summary_to_continue(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary | None:
        """The header for who would begin anew without it; None where it was removed meanwhile.

        Raises:
            IntegrityError: damaged; in the log as well.
            NewerFormatError: written by a newer version; in the log as well.
            SealedError: sealed, and its key is not here.
            UnsealedError: not sealed, and it must be: a person only has to allow it.
        """
        try:
            return self.summary(ref, entry)
        except NotFoundError:
            return None
        except (IntegrityError, NewerFormatError) as error:
            _log.warning("snapshot_unreadable", snapshot=str(ref), why=str(error))
            raise

    def manifest(self, ref: SnapshotRef) -> Manifest:
        """The whole manifest, verified; raises as `manifest_and_digest` does."""
        return self.manifest_and_digest(ref)[0]

    def manifest_and_digest(self, ref: SnapshotRef) -> tuple[Manifest, str]:
        """The whole manifest, verified, and the digest of its file.

        Raises:
            NotFoundError: there is no such snapshot.
            IntegrityError: damaged.
            NewerFormatError: written by a newer version.
            SealedError: sealed, and its key is not here.
            UnsealedError: not sealed, and it must be.
        """
        entry = self.at(ref).committed.get(ref)
        if entry is None:
            raise _not_found(ref, self.of(ref.identity))
        try:
            manifest, digest = _twice(lambda: self._read_manifest(ref, entry))
        except (IntegrityError, NewerFormatError, MissingObjectError) as error:
            raise self._explained(ref, error) from error
        self._must_be(ref, manifest.summary)
        return manifest, digest

    def _read_manifest(self, ref: SnapshotRef, entry: Entry) -> tuple[Manifest, str]:
        data = self._read_head(entry, _USUAL_BYTES)
        length = self._seals.file_length(ref, data)
        if max(length, entry.size) > len(data):
            data = self._backend.get(entry.key, at_most=length)
        plain = self._seals.open_manifest(ref, data)
        return manifest_format.decode_manifest(plain), manifest_format.digest_of(data)

    def _explained(self, ref: SnapshotRef, error: CedanaSchedError) -> CedanaSchedError:
        """With the snapshot's name. A file that is gone is damage only if nobody has removed the snapshot meanwhile."""
        sentence = f"snapshot {ref}: {error.message}"
        if isinstance(error, NewerFormatError):
            return NewerFormatError(sentence, remedy=error.remedy)
        if isinstance(error, MissingObjectError) and ref not in self.at(ref).committed:
            return _not_found(ref, self.of(ref.identity))
        return IntegrityError(sentence, remedy=_REMEDY)

    def _must_be(self, ref: SnapshotRef, summary: SnapshotSummary) -> None:
        """A manifest under another name would hand one workload's memory to another."""
        if summary.ref != ref:
            sentence = f"snapshot {ref}: its manifest is that of {summary.ref}"
            raise IntegrityError(sentence, remedy="somebody moved files in the store; remove this one")


def _twice(read: Callable[[], R]) -> R:
    """Bytes that are wrong may have been spoilt on their way: they are read once more before they count as damaged."""
    try:
        return read()
    except IntegrityError as error:
        _log.info("manifest_read_again", why=error.message)
        return read()


def _not_found(ref: SnapshotRef, generations: Generations) -> NotFoundError:
    newest = sorted(one.generation for one in generations.committed)
    more = f"{len(newest) - _SHOWN} older, " if len(newest) > _SHOWN else ""
    known = more + ", ".join(map(str, newest[-_SHOWN:])) or "none"
    return NotFoundError("snapshot", str(ref), "does not exist", remedy=f"generations there are: {known}")
