"""Which snapshots are committed: the one reading of the snapshot folders that everybody else uses.

A generation is committed when its manifest is there. Where the store cannot create conditionally, two manifests of
one generation may exist for a moment: the one that the store dates earlier counts, at the same instant the one with
the smaller name, and its writer finds out by looking again (`commit.py`).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import structlog

from cedana_sched.model.errors import IncompatibleError, IntegrityError, NotFoundError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import Manifest, SnapshotSummary
from cedana_sched.store import format as manifest_format
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry, MissingObjectError

_log = structlog.get_logger(__name__)
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

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._summaries: dict[Entry, SnapshotSummary] = {}

    def generations(self, folder: str) -> Generations:
        """Everything below a snapshots folder, or below one identity's."""
        committed: dict[SnapshotRef, Entry] = {}
        removed: set[SnapshotRef] = set()
        for entry in self._backend.list(folder):
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

    def is_committed(self, ref: SnapshotRef) -> bool:
        return ref in self.of(ref.identity).committed

    def summary(self, ref: SnapshotRef, entry: Entry) -> SnapshotSummary:
        """The header of a manifest.

        Raises:
            IntegrityError: damaged, or gone in the meantime.
            IncompatibleError: written by a newer version.
        """
        with self._lock:
            known = self._summaries.get(entry)
        if known is not None:
            return known
        try:
            head = self._backend.get_range(entry.key, 0, manifest_format.HEAD_BYTES)
            if (length := manifest_format.head_length(head)) > len(head):
                head = self._backend.get_range(entry.key, 0, length)
            summary = manifest_format.decode_summary(head)
        except (IntegrityError, MissingObjectError) as error:
            raise IntegrityError(f"snapshot {ref}: {error.message}", remedy=_REMEDY) from error
        except IncompatibleError as error:
            raise IncompatibleError(f"snapshot {ref}: {error.message}", remedy=error.remedy) from error
        self._must_be(ref, summary)
        with self._lock:
            self._summaries[entry] = summary
        return summary

    def readable(self, generations: Generations) -> list[SnapshotSummary]:
        """The summaries of those that can be read, oldest first; the others are logged, and stay."""
        found = []
        for ref, entry in generations.committed.items():
            try:
                found.append(self.summary(ref, entry))
            except (IntegrityError, IncompatibleError) as error:
                _log.warning("snapshot_unreadable", snapshot=str(ref), why=str(error))
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

    def manifest(self, ref: SnapshotRef) -> Manifest:
        """The whole manifest, verified.

        Raises:
            NotFoundError: there is no such snapshot.
            IntegrityError: damaged.
            IncompatibleError: written by a newer version.
        """
        generations = self.of(ref.identity)
        entry = generations.committed.get(ref)
        if entry is None:
            known = ", ".join(str(one.generation) for one in sorted(generations.committed)) or "none"
            raise NotFoundError("snapshot", str(ref), "does not exist", remedy=f"generations there are: {known}")
        try:
            manifest = manifest_format.decode_manifest(self._backend.get(entry.key))
        except (IntegrityError, MissingObjectError) as error:
            raise IntegrityError(f"snapshot {ref}: {error.message}", remedy=_REMEDY) from error
        except IncompatibleError as error:
            raise IncompatibleError(f"snapshot {ref}: {error.message}", remedy=error.remedy) from error
        self._must_be(ref, manifest.summary)
        return manifest

    def _must_be(self, ref: SnapshotRef, summary: SnapshotSummary) -> None:
        """A manifest under another name would hand one workload's memory to another."""
        if summary.ref != ref:
            sentence = f"snapshot {ref}: its manifest is that of {summary.ref}"
            raise IntegrityError(sentence, remedy="somebody moved files in the store; remove this one")


def _precedence(entry: Entry) -> tuple[bool, float, str]:
    """Manifests made by conditional create carry no writer, and come before all others."""
    file = layout.parse_generation_key(entry.key)
    return (file is not None and file.writer is not None, entry.modified, entry.key)
