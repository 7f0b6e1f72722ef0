"""The files of a namespace's snapshots as a collection reads them: whatever their number, in bounded memory.

Each workload that ever was leaves one `removed` for good, so that its numbers do not come back. Years of work have more
of them than fit memory; only the manifests must.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry
from cedana_sched.store.bounded import kept
from cedana_sched.store.layout import GenerationFile


def files_that_count(backend: Backend, namespace: str) -> Iterator[Entry]:
    """The manifests, and behind them the `removed` of those among them.

    Raises:
        CrowdedNamespaceError: more manifests than fit memory.
    """
    folder = layout.snapshots_folder(namespace)
    seen = set()
    for entry in kept(backend, namespace, folder, "snapshots", _is_manifest):
        if (file := layout.parse_generation_key(entry.key)) is not None:
            seen.add(file.ref)
            yield entry
    for entry in backend.list(folder):
        file = layout.parse_generation_key(entry.key)
        if file is not None and file.kind == "removed" and file.ref in seen:
            yield entry


def served_files(entries: Iterable[Entry], committed: Collection[str], writers: Collection[str]) -> Iterator[Entry]:
    """Claims of the dead, manifests that lost or are removed, and all but the newest `removed` of an identity.

    Args:
        entries: files below a snapshots folder that are old enough; those of an identity should follow one another,
            otherwise more `removed` stay.
        committed: keys of the manifests that count.
        writers: those at work.
    """
    newest = _Newest()
    for entry in entries:
        file = layout.parse_generation_key(entry.key)
        if file is None:
            continue
        if file.kind == "claim":
            if file.writer not in writers:
                yield entry
            continue
        if (passed := newest.passed_by(file, entry)) is not None:
            yield passed
        if file.kind == "manifest" and entry.key not in committed:
            yield entry


class _Newest:
    """The newest number of the identity whose files come now, and its `removed`."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._generation = 0
        self._removed: Entry | None = None

    def passed_by(self, file: GenerationFile, entry: Entry) -> Entry | None:
        """The `removed` that is not needed any more now that this file has come, perhaps itself."""
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
