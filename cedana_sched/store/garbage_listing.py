"""A namespace's snapshot files as garbage collection reads them: any number of files, in bounded memory.

Each workload leaves one tombstone (`removed`) for good, so that its numbers are not reused. Over years there are more
tombstones than fit in memory; only the manifests must fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry
from cedana_sched.store.bounded_listing import bounded_list
from cedana_sched.store.layout import GenerationFile


def manifests_and_tombstones(backend: Backend, namespace: str) -> Iterator[Entry]:
    """Yield the manifests, then their tombstones.

    Raises:
        CrowdedNamespaceError: more manifests than fit in memory.
    """
    folder = layout.snapshots_folder(namespace)
    seen = set()
    for entry in bounded_list(backend, namespace, folder, "snapshots", _is_manifest):
        if (file := layout.parse_generation_key(entry.key)) is not None:
            seen.add(file.ref)
            yield entry
    for entry in backend.list(folder):
        file = layout.parse_generation_key(entry.key)
        if file is not None and file.kind == "removed" and file.ref in seen:
            yield entry


def deletable_files(entries: Iterable[Entry], committed: Collection[str], writers: Collection[str]) -> Iterator[Entry]:
    """Yield what can be deleted: dead writers' claims, void manifests, and all but each identity's newest tombstone.

    Args:
        entries: files below a snapshots folder that are old enough; files of an identity should be adjacent, otherwise
            more tombstones stay.
        committed: keys of the manifests that count.
        writers: the live writers.
    """
    newest = _NewestTombstone()
    for entry in entries:
        file = layout.parse_generation_key(entry.key)
        if file is None:
            continue
        if file.kind == "claim":
            if file.writer not in writers:
                yield entry
            continue
        if (passed := newest.superseded_tombstone(file, entry)) is not None:
            yield passed
        if file.kind == "manifest" and entry.key not in committed:
            yield entry


class _NewestTombstone:
    """The newest generation of the current identity, and its tombstone."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._generation = 0
        self._removed: Entry | None = None

    def superseded_tombstone(self, file: GenerationFile, entry: Entry) -> Entry | None:
        """Return the tombstone, perhaps the file itself, that this file makes unnecessary."""
        removed = entry if file.kind == "removed" else None
        if file.identity != self._identity:
            self._identity, self._generation, self._removed = file.identity, file.generation, removed
            return None
        if file.generation < self._generation:
            return removed
        if file.generation == self._generation:
            self._removed = removed or self._removed
            return None
        passed, self._generation, self._removed = self._removed, file.generation, removed
        return passed


def _is_manifest(entry: Entry) -> bool:
    file = layout.parse_generation_key(entry.key)
    return file is not None and file.kind == "manifest"
