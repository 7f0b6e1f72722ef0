"""Garbage collection: deletes unreferenced packs, and never a referenced one.

A pack is deleted in two runs: the first *condemns* it (a marker of its name), a later one deletes it if the marker is
older than the grace period and the pack is still unreferenced. Why no committed manifest can lose a pack:

1. Before a commit, a writer looks for markers, then checks that the packs of others that it names exist, and aborts if
   one of them is condemned or missing. Its manifest is in the store at most W later (`COMMIT_WINDOW_SECONDS` and the
   timeout of one request); a slower writer aborts.
2. A run deletes pack P only if P's marker is older than the grace period G, and P is in no manifest that is listed
   *after* that age was established. G is larger than W.
3. Suppose a manifest M names P, and a run deletes P without having listed M. M was then written after the run's
   listing began, hence more than G after P's marker was set, and M's writer looked for markers less than W < G before
   that: the marker existed, and M's writer aborted. If the marker was gone again by then, either P had been deleted,
   which the writer's second check detects, or a run had found P in some other manifest N that the deleting run did
   not list; apply the same to N. The first such manifest cannot exist.

All ages are by the store's own clock, so the argument requires no synchronized clocks. Nor does it require intents:
they keep a pack that is being written, or about to be named, from being condemned in the first place, so that writers
rarely abort. An intent alone never revokes a marker on which another run may have acted, only one that this run has
just set. A manifest that cannot be read may name any pack: while one exists, no pack of its namespace is deleted.

If packs do not fit in memory, a run takes a sample, another one each time (`bounded_listing.py`). All other garbage is
deleted in batches while it is listed, because its number is unbounded.

A marker without a pack is deleted only if it is older than the run that did not list the pack: then the pack was
deleted before, for only existing packs are condemned, and no name is reused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Final

import msgspec

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry
from cedana_sched.store.bounded_listing import Sample, last_key_part, remove_in_parts
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.garbage_listing import deletable_files, manifests_and_tombstones
from cedana_sched.store.generation_names import parse_generations
from cedana_sched.store.intents import CLOCK_GRAIN_SECONDS, TIME_TO_LIVE_SECONDS, Intents, dead_intents, read_intents
from cedana_sched.store.references import read_references

COMMIT_WINDOW_SECONDS = 120.0
"""Longest time between a writer's check of its packs and its write of the manifest."""
GRACE_SECONDS = 900.0
"""Age at which a condemned pack is deleted."""

MARKERS_LISTED: Final = 10_000
"""Markers that a writer lists; if there are more, it looks up those of its own packs one by one."""

_FEW, _LOOKERS = 32, 16


class GarbageReport(msgspec.Struct, frozen=True):
    """Result of one run over one namespace. `blocked_by` names the manifests that prevent deleting packs."""

    namespace: str
    condemned_packs: int = 0
    rescued_packs: int = 0
    removed_packs: int = 0
    removed_bytes: int = 0
    removed_others: int = 0
    is_empty: bool = False
    """Whether nothing is left in the namespace for another run to inspect."""
    blocked_by: tuple[str, ...] = ()


def condemned_packs(backend: Backend, namespace: str, among: Collection[str]) -> set[str]:
    """Return the condemned ones of the packs, which a new manifest must not name.

    The number of other markers costs no memory, and beyond `MARKERS_LISTED` no time.
    """
    keys = {pack: _marker_key(namespace, pack) for pack in among}
    if not keys:
        return set()
    listed = [entry.key for entry in islice(backend.list(layout.condemned_folder(namespace)), MARKERS_LISTED)]
    if len(listed) == MARKERS_LISTED:
        return _existing_packs(backend, keys)
    markers = frozenset(listed)
    return {pack for pack, key in keys.items() if key in markers}


def require_packs(backend: Backend, namespace: str, writer: str, packs: Collection[str]) -> None:
    """Refuse to name a pack that is being collected: checks the markers, then the packs, in this order.

    Raises:
        StoreUnavailableError: a pack was condemned while the snapshot was taken.
    """
    lost = condemned_packs(backend, namespace, packs)
    others = {pack: layout.pack_key(namespace, pack) for pack in packs if layout.pack_writer(pack) != writer}
    lost.update(others.keys() - _existing_packs(backend, others))
    if lost:
        sentence = f"pack {min(lost)}, which the snapshot refers to, was given up while it was taken"
        raise StoreUnavailableError(sentence, remedy="take the snapshot again; it will be written in full")


def _existing_packs(backend: Backend, keys: dict[str, str]) -> set[str]:
    """Return the packs whose key exists. A large workload has thousands, and is frozen meanwhile."""

    def is_there(key: str) -> bool:
        return backend.stat(key) is not None

    if len(keys) <= _FEW:
        return {pack for pack, key in keys.items() if is_there(key)}
    with ThreadPoolExecutor(_LOOKERS, thread_name_prefix="store-look") as pool:
        return {pack for pack, there in zip(keys, pool.map(is_there, keys.values()), strict=True) if there}


def collect_garbage(
    backend: Backend,
    catalogue: Catalogue,
    namespace: str,
    *,
    grace_seconds: float = GRACE_SECONDS,
    time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
) -> GarbageReport:
    """Run once over one namespace; safe beside writers, readers and other runs.

    `grace_seconds` is the age from which a condemned pack, and a dead writer's remains, are deleted; well below the
    default, the argument above no longer holds for live writers. `time_to_live_seconds` is the age from which a writer
    without heartbeat counts as dead.

    Raises:
        CrowdedNamespaceError: more snapshots or live writers than fit in memory; only dead writers' remains, and
            markers without a pack, were deleted.
        StoreError: the store failed.
    """
    return _CollectionRun(backend, catalogue, namespace, grace_seconds, time_to_live_seconds).run()


class _CollectionRun:
    """One run. A run lists candidates first, and references after that: the argument rests on this order."""

    def __init__(
        self, backend: Backend, catalogue: Catalogue, namespace: str, grace_seconds: float, time_to_live_seconds: float
    ) -> None:
        self._backend = backend
        self._namespace = namespace
        self._grace_seconds = grace_seconds
        self._time_to_live = time_to_live_seconds
        self._clock = backend.restricted_to_folder(layout.namespace_folder(namespace))
        now = self._clock.store_time()
        grain = CLOCK_GRAIN_SECONDS if grace_seconds else 0.0
        self._limit = now - grace_seconds - grain
        self._before = now - grain
        sample = Sample(iter(backend.list(layout.packs_folder(namespace))))
        self._sample, self._packs = sample, sample.entries
        self._has_ownerless = False
        marked = filter(self._has_sampled_pack, backend.list(layout.condemned_folder(namespace)))
        self._markers = {last_key_part(entry): entry for entry in marked}
        self._removed_others = self._remove_markers_without_pack() + self._remove_dead_intents(now)
        self._intents = self._read_intents(now)
        self._generations = parse_generations(manifests_and_tombstones(backend, namespace))
        self._references = read_references(backend, catalogue, namespace, self._generations)

    def run(self) -> GarbageReport:
        unneeded = {name for name in self._packs if self._is_unneeded(name)}
        doomed = {name for name in unneeded if name in self._markers and self._is_old(self._markers[name])}
        self._backend.delete(layout.pack_key(self._namespace, name) for name in doomed)
        condemned = self._mark_packs(unneeded - self._markers.keys())
        spared = self._markers.keys() & self._packs.keys() & self._references.packs
        self._backend.delete(self._markers[name].key for name in doomed | spared)
        others = remove_in_parts(self._backend, chain(self._unneeded_pages(), self._deletable_generation_files()))
        folder = layout.namespace_folder(self._namespace)
        swept = self._backend.sweep_partial(folder, self._grace_seconds, self._is_being_written)
        is_left = self._packs.keys() - doomed or self._generations.committed or self._intents.live
        return GarbageReport(
            namespace=self._namespace,
            condemned_packs=condemned,
            rescued_packs=len(spared),
            removed_packs=len(doomed),
            removed_bytes=sum(self._packs[name].size for name in doomed),
            removed_others=self._removed_others + others + swept,
            blocked_by=self._references.unreadable,
            is_empty=self._sample.is_whole and not is_left,
        )

    def _has_sampled_pack(self, marker: Entry) -> bool:
        """Return whether the marker's pack is in the sample; record a marker without any pack."""
        name = last_key_part(marker)
        is_marker = marker.key == _marker_key(self._namespace, name)
        if is_marker and name in self._packs:
            return True
        self._has_ownerless |= self._sample.includes(name) or not is_marker
        return False

    def _remove_markers_without_pack(self) -> int:
        """Delete the markers without a pack.

        Markers are listed once more: a listing during deletions may omit objects that count.
        """
        if not self._has_ownerless:
            return 0
        return remove_in_parts(
            self._backend,
            (
                one.key
                for one in self._backend.list(layout.condemned_folder(self._namespace))
                if one.modified < self._before and self._lacks_pack(one)
            ),
        )

    def _lacks_pack(self, marker: Entry) -> bool:
        name = last_key_part(marker)
        if marker.key != _marker_key(self._namespace, name):
            return True
        return self._sample.includes(name) and name not in self._packs

    def _remove_dead_intents(self, now: float) -> int:
        dead = dead_intents(self._backend, self._namespace, now=now, time_to_live_seconds=self._time_to_live)
        return remove_in_parts(self._backend, (entry.key for entry in dead if self._is_old(entry)))

    def _is_old(self, entry: Entry) -> bool:
        return entry.modified <= self._limit

    def _is_being_written(self, key: str) -> bool:
        writer = layout.pages_writer(key) if key.startswith(layout.pages_folder(self._namespace)) else None
        return (writer or layout.pack_writer(key.rpartition("/")[2])) in self._intents.live_writers

    def _is_unneeded(self, pack: str) -> bool:
        needed = pack in self._references.packs or pack in self._intents.announced_packs
        return not (needed or layout.pack_writer(pack) in self._intents.live_writers or self._references.unreadable)

    def _mark_packs(self, packs: Iterable[str]) -> int:
        """Set markers, and revoke those whose pack a writer has announced meanwhile."""
        keys = {name: _marker_key(self._namespace, name) for name in packs}
        for key in keys.values():
            self._backend.put(key, b"")
        if not keys:
            return 0
        announced = self._read_intents(self._clock.store_time()).announced_packs & keys.keys()
        self._backend.delete(keys[name] for name in announced)
        return len(keys) - len(announced)

    def _read_intents(self, now: float) -> Intents:
        return read_intents(self._backend, self._namespace, now=now, time_to_live_seconds=self._time_to_live)

    def _unneeded_pages(self) -> Iterator[str]:
        """Yield unreferenced page fingerprints; may be listed last: old ones existed when this run began."""
        if self._references.unreadable:
            return
        for entry in self._backend.list(layout.pages_folder(self._namespace)):
            is_needed = entry.key in self._references.page_indexes
            if (
                not is_needed
                and layout.pages_writer(entry.key) not in self._intents.live_writers
                and self._is_old(entry)
            ):
                yield entry.key

    def _deletable_generation_files(self) -> Iterator[str]:
        old = filter(self._is_old, self._backend.list(layout.snapshots_folder(self._namespace)))
        committed = {entry.key for entry in self._generations.committed.values()}
        return (entry.key for entry in deletable_files(old, committed, self._intents.live_writers))


def _marker_key(namespace: str, pack: str) -> str:
    return f"{layout.condemned_folder(namespace)}/{pack}"
