"""Which snapshots are committed: the one reading of the snapshot folders that everybody else uses.

A generation is committed when its manifest is there. Where the store cannot create conditionally, two manifests of
one generation may exist for a moment: the one that the store dates earlier counts, at the same instant the one with
the smaller name, and its writer finds out by looking again (`commit.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import structlog

from cedana_sched.model.errors import CedanaSchedError, IntegrityError, NewerFormatError, NotFoundError, UnsealedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import Manifest, SnapshotSummary
from cedana_sched.store import format as manifest_format
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Buffer, Entry, MissingObjectError
from cedana_sched.store.sealing.seals import Seals

R = TypeVar("R")

_log = structlog.get_logger(__name__)
MOST_REMEMBERED = 10_000
_READERS = 8
_SHOWN = 20
_USUAL_BYTES = 1 << 20
"""So much of a manifest is read at once; a longer one whole, once its head is sound, and as long as that says."""
_REMEDY = "restore an older generation, or remove this one"


class Generations(NamedTuple):
    """What a snapshot folder says: manifests that count by reference, and numbers that are used up."""

    committed: dict[SnapshotRef, Entry]
    removed: set[SnapshotRef]

    def latest(self, identity: Identity) -> SnapshotRef | None:
        return max((ref for ref in self.committed if ref.identity == identity), default=None)

    def next_number(self, identity: Identity) -> int:
        used = (ref.generation for ref in (*self.committed, *self.removed) if ref.identity == identity)
        return max(used, default=0) + 1


class Catalogue:
    """Reads what is committed. Summaries are remembered: a manifest never changes."""

    def __init__(self, backend: Backend, seals: Seals | None = None) -> None:
        """`seals` opens the manifests; without it none is sealed."""
        self._backend = backend
        self._seals = seals or Seals(backend)
        self._lock = threading.Lock()
        self._summaries: dict[Entry, SnapshotSummary] = {}

    def generations(self, folder: str) -> Generations:
        """Everything below a snapshots folder, or below one identity's."""
        return self.generations_of(self._backend.list(folder))

    @staticmethod
    def generations_of(entries: Iterable[Entry]) -> Generations:
        """What a listing of a snapshots folder says."""
        committed: dict[SnapshotRef, Entry] = {}
        removed: set[SnapshotRef] = set()
        for entry in entries:
            file = layout.parse_generation_key(entry.key)
            if file is None or file.kind == "claim":
                continue
            ref = SnapshotRef(file.identity, file.generation)
            if file.kind == "removed":
                removed.add(ref)
            elif ref not in committed or _precedence(entry) < _precedence(committed[ref]):
                committed[ref] = entry
        return Generations({ref: one for ref, one in committed.items() if ref not in removed}, removed)

    def of(self, identity: Identity) -> Generations:
        return self.generations(layout.identity_folder(identity))

    def summary(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary:
        """The header of a manifest.

        Raises:
            NotFoundError: removed in the meantime.
            IntegrityError: damaged.
            NewerFormatError: written by a newer version.
            SealedError: sealed, and its key is not here.
            UnsealedError: not sealed, and it must be.
        """
        with self._lock:
            known = self._summaries.get(entry)
        if known is not None:
            return known
        try:
            summary = _twice(lambda: self._read_summary(ref, entry))
        except (IntegrityError, NewerFormatError, MissingObjectError) as error:
            raise self._explained(ref, error) from error
        self._must_be(ref, summary)
        with self._lock:
            while len(self._summaries) >= MOST_REMEMBERED:
                del self._summaries[next(iter(self._summaries))]
            self._summaries[entry] = summary
        return summary

    def _read_summary(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary:
        head = self._read_head(entry, manifest_format.HEAD_BYTES)
        return manifest_format.decode_summary(self._seals.open_head(ref, head))

    def _read_head(self, entry: Entry, usual_bytes: int) -> Buffer:
        """The beginning of a manifest, at least its head."""
        head = self._backend.get_range(entry.key, 0, usual_bytes)
        if (length := self._seals.head_length(head)) > len(head):
            head = self._backend.get_range(entry.key, 0, length)
        return head

    def readable(self, generations: Generations) -> list[SnapshotSummary]:
        """The summaries of those that can be read, oldest first; the others are logged, and stay."""
        rows = list(generations.committed.items())
        with ThreadPoolExecutor(min(_READERS, max(1, len(rows))), thread_name_prefix="store-list") as pool:
            found = [one for one in pool.map(lambda row: self.summary_if_readable(*row), rows) if one is not None]
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

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
        generations = self.of(ref.identity)
        entry = generations.committed.get(ref)
        if entry is None:
            raise _not_found(ref, generations)
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
        if isinstance(error, MissingObjectError) and ref not in (generations := self.of(ref.identity)).committed:
            return _not_found(ref, generations)
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


def _precedence(entry: Entry) -> tuple[bool, float, str]:
    """Manifests made by conditional create carry no writer, and come before all others."""
    file = layout.parse_generation_key(entry.key)
    return (file is not None and file.writer is not None, entry.modified, entry.key)
