"""Removing what nobody refers to any more, without ever removing what somebody does.

A pack is removed in two runs: the first *condemns* it (a marker of its name), a later one removes it if the marker is
older than the grace period and still nothing refers to it. Why no committed manifest can lose a pack:

1. A writer, before it commits, lists the markers, then looks whether the packs of others that it names are there,
   and gives up if one of them has a marker or is gone. Its manifest is in the store at most W later
   (`COMMIT_WINDOW_SECONDS` and the time-out of one request); it gives up if it is slower.
2. A run removes pack P only if P's marker is older than the grace period G, and P is in no manifest that is listed
   *after* that age was established. G is larger than W.
3. Suppose a manifest M names P, and a run removes P without having listed M. M was then written after the run's
   listing began, hence more than G after P's marker was set, and M's writer looked for markers less than W < G before
   that: the marker was there, and M's writer gave up. If the marker was gone again by then, either P had been
   removed, which the writer's second look finds out, or a run had found P in some other manifest N that the removing
   run did not list; apply the same to N. The first such manifest cannot exist.

All ages are by the store's own clock, so the argument needs no agreement between machines. It does not need intents
either: they keep a pack that is being written, or about to be named, from being condemned in the first place, so that
writers hardly ever have to give up. A manifest that cannot be read may name anything: while there is one, no pack of
its namespace is removed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cedana_sched.model.errors import IncompatibleError, IntegrityError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.intents import CLOCK_GRAIN_SECONDS, TIME_TO_LIVE_SECONDS, Intents, read_intents

GRACE_SECONDS = 900.0


class GarbageReport(msgspec.Struct, frozen=True):
    """What one run over one namespace did. `blocked_by` names manifests that forbid removing packs."""

    namespace: str
    condemned_packs: int = 0
    rescued_packs: int = 0
    removed_packs: int = 0
    removed_bytes: int = 0
    removed_others: int = 0
    blocked_by: tuple[str, ...] = ()


class _References(msgspec.Struct, frozen=True):
    """What the committed manifests need."""

    packs: set[str]
    page_indexes: set[str]
    unreadable: tuple[str, ...]


def condemned_packs(backend: Backend, namespace: str) -> set[str]:
    """The packs that are about to be removed, and must not be named by a new manifest."""
    return {_name(entry) for entry in backend.list(layout.condemned_folder(namespace))}


def collect_garbage(
    backend: Backend,
    catalogue: Catalogue,
    namespace: str,
    *,
    grace_seconds: float = GRACE_SECONDS,
    time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
) -> GarbageReport:
    """One run over one namespace; may run beside writers, readers and other runs.

    `grace_seconds` is the age from which a condemned pack, and what a dead writer left, is removed; well below the
    default the argument above no longer holds for writers at work. `time_to_live_seconds` is the age from which a
    writer without heartbeat counts as dead.
    """
    now = backend.now()
    packs = {_name(entry): entry for entry in backend.list(layout.packs_folder(namespace))}
    pages = list(backend.list(layout.pages_folder(namespace)))
    markers = {_name(entry): entry for entry in backend.list(layout.condemned_folder(namespace))}
    intents = read_intents(backend, namespace, now=now, time_to_live_seconds=time_to_live_seconds)
    references = _references(catalogue, namespace)
    limit = now - grace_seconds - (CLOCK_GRAIN_SECONDS if grace_seconds else 0.0)

    unneeded = {
        name
        for name in packs
        if name not in references.packs
        and name not in intents.packs
        and layout.pack_writer(name) not in intents.writers
    }
    doomed = {name for name in unneeded if name in markers and markers[name].modified <= limit}
    if references.unreadable:
        doomed = set()
        unneeded = set()
    backend.delete(layout.pack_key(namespace, name) for name in doomed)
    fresh = _condemn(backend, namespace, unneeded - markers.keys(), time_to_live_seconds)
    spared = {name for name in markers if name in packs and name not in unneeded}
    ownerless = {name for name in markers if name not in packs}
    backend.delete(markers[name].key for name in doomed | spared | ownerless)
    others = _others(backend, namespace, pages, references, intents, limit)
    backend.delete(others)
    swept = backend.sweep_partial(layout.namespace_folder(namespace), grace_seconds)
    return GarbageReport(
        namespace=namespace,
        condemned_packs=fresh,
        rescued_packs=len(spared),
        removed_packs=len(doomed),
        removed_bytes=sum(packs[name].size for name in doomed),
        removed_others=len(others) + swept,
        blocked_by=references.unreadable,
    )


def _condemn(backend: Backend, namespace: str, names: Iterable[str], time_to_live_seconds: float) -> int:
    """Set markers, and take those back whose pack a writer has announced meanwhile."""
    keys = {name: f"{layout.condemned_folder(namespace)}/{name}" for name in names}
    for key in keys.values():
        backend.put(key, b"")
    if not keys:
        return 0
    intents = read_intents(backend, namespace, now=backend.now(), time_to_live_seconds=time_to_live_seconds)
    announced = intents.packs & keys.keys()
    backend.delete(keys[name] for name in announced)
    return len(keys) - len(announced)


def _references(catalogue: Catalogue, namespace: str) -> _References:
    packs: set[str] = set()
    page_indexes: set[str] = set()
    unreadable: list[str] = []
    for ref, entry in catalogue.generations(layout.snapshots_folder(namespace)).committed.items():
        try:
            summary = catalogue.summary(ref, entry)
        except (IntegrityError, IncompatibleError):
            if catalogue.is_committed(ref):
                unreadable.append(str(ref))
            continue
        packs.update(summary.packs)
        if summary.page_index:
            page_indexes.add(summary.page_index)
    return _References(packs, page_indexes, tuple(unreadable))


def _others(
    backend: Backend, namespace: str, pages: list[Entry], references: _References, intents: Intents, limit: float
) -> list[str]:
    """Keys of what dead writers left besides packs, and of markers that have served."""
    if references.unreadable:
        return list(intents.stale)
    keys = [
        entry.key
        for entry in pages
        if entry.key not in references.page_indexes
        and layout.pages_writer(entry.key) not in intents.writers
        and entry.modified <= limit
    ]
    keys += [key for key in intents.stale if (entry := backend.stat(key)) is not None and entry.modified <= limit]
    return keys + _served_generation_files(backend, namespace, intents, limit)


def _served_generation_files(backend: Backend, namespace: str, intents: Intents, limit: float) -> list[str]:
    """Claims of the dead, manifests that lost or are removed, and all but the newest `removed` of an identity."""
    entries = [
        (file, entry)
        for entry in backend.list(layout.snapshots_folder(namespace))
        if (file := layout.parse_generation_key(entry.key)) is not None and entry.modified <= limit
    ]
    newest: dict[object, int] = {}
    for file, _ in entries:
        if file.kind != "claim":
            newest[file.identity] = max(newest.get(file.identity, 0), file.generation)
    removed = {SnapshotRef(file.identity, file.generation) for file, _ in entries if file.kind == "removed"}
    served = []
    for file, entry in entries:
        ref = SnapshotRef(file.identity, file.generation)
        gone = file.kind == "manifest" and ref in removed
        dead_claim = file.kind == "claim" and file.writer not in intents.writers
        passed = file.kind == "removed" and file.generation < newest[file.identity]
        if gone or dead_claim or passed:
            served.append(entry.key)
    return served


def _name(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]
