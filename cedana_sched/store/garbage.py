"""Removing what nobody refers to any more, without ever removing what somebody does.

A pack is removed in two runs: the first *condemns* it (a marker of its name), a later one removes it if the marker is
older than the grace period and still nothing refers to it. Why no committed manifest can lose a pack:

1. A writer, before it commits, looks for the markers, then looks whether the packs of others that it names are there,
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
writers hardly ever have to give up. An intent alone never takes back a marker that another run may already have
acted upon, only one that was set this moment. A manifest that cannot be read may name anything: while there is one,
no pack of its namespace is removed.

Of packs that are more than fit memory a run takes a sample, another one each time (`bounded.py`). What else is removed
is removed while it is listed, in parts: there may be any number of it.

A marker without a pack goes only if it is older than the run that did not list the pack: then the pack was removed
before, for packs are condemned while they are there, and no name comes back.
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
from cedana_sched.store.bounded import Sample, name_of, remove_in_parts
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.generation_files import files_that_count, served_files
from cedana_sched.store.generations import generations_of
from cedana_sched.store.intents import CLOCK_GRAIN_SECONDS, TIME_TO_LIVE_SECONDS, Intents, dead_intents, read_intents
from cedana_sched.store.references import read_references

COMMIT_WINDOW_SECONDS = 120.0
"""Longest time between a writer's look at its packs and its writing of the manifest."""
GRACE_SECONDS = 900.0
"""Age at which a condemned pack is removed."""

MARKERS_LISTED: Final = 10_000
"""So many markers a writer reads; where there are more, it looks for those of its own packs, one by one."""

_FEW, _LOOKERS = 32, 16


class GarbageReport(msgspec.Struct, frozen=True):
    """What one run over one namespace did. `blocked_by` names manifests that forbid removing packs."""

    namespace: str
    condemned_packs: int = 0
    rescued_packs: int = 0
    removed_packs: int = 0
    removed_bytes: int = 0
    removed_others: int = 0
    is_empty: bool = False
    """Nothing is left in the namespace that another run would have to look at."""
    blocked_by: tuple[str, ...] = ()


def condemned_packs(backend: Backend, namespace: str, among: Collection[str]) -> set[str]:
    """Those of the packs that are about to be removed, and must not be named by a new manifest.

    How many markers somebody has laid beside them costs neither memory nor, beyond `MARKERS_LISTED`, time.
    """
    keys = {pack: _marker_key(namespace, pack) for pack in among}
    if not keys:
        return set()
    listed = [entry.key for entry in islice(backend.list(layout.condemned_folder(namespace)), MARKERS_LISTED)]
    if len(listed) == MARKERS_LISTED:
        return _there(backend, keys)
    markers = frozenset(listed)
    return {pack for pack, key in keys.items() if key in markers}


def require_packs(backend: Backend, namespace: str, writer: str, packs: Collection[str]) -> None:
    """Refuse to name a pack that is being collected: first the markers, then the packs, in this order.

    Raises:
        StoreUnavailableError: one of them was given up while the snapshot was taken.
    """
    lost = condemned_packs(backend, namespace, packs)
    others = {pack: layout.pack_key(namespace, pack) for pack in packs if layout.pack_writer(pack) != writer}
    lost.update(others.keys() - _there(backend, others))
    if lost:
        sentence = f"pack {min(lost)}, which the snapshot refers to, was given up while it was taken"
        raise StoreUnavailableError(sentence, remedy="take the snapshot again; it will be written in full")


def _there(backend: Backend, keys: dict[str, str]) -> set[str]:
    """The packs whose key is there. A large workload has thousands of them, and is frozen meanwhile."""

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
    """One run over one namespace; may run beside writers, readers and other runs.

    `grace_seconds` is the age from which a condemned pack, and what a dead writer left, is removed; well below the
    default the argument above no longer holds for writers at work. `time_to_live_seconds` is the age from which a
    writer without heartbeat counts as dead.

    Raises:
        CrowdedNamespaceError: more snapshots or writers at work than fit memory; only what dead writers left, and
            markers without a pack, were removed.
        StoreError: the store failed.
    """
    return _Run(backend, catalogue, namespace, grace_seconds, time_to_live_seconds).run()


class _Run:
    """One run. What may be removed is listed first, who needs it after that: the argument rests on this order."""

    def __init__(
        self, backend: Backend, catalogue: Catalogue, namespace: str, grace_seconds: float, time_to_live_seconds: float
    ) -> None:
        self._backend = backend
        self._namespace = namespace
        self._grace_seconds = grace_seconds
        self._time_to_live = time_to_live_seconds
        self._clock = backend.within(layout.namespace_folder(namespace))
        now = self._clock.now()
        grain = CLOCK_GRAIN_SECONDS if grace_seconds else 0.0
        self._limit = now - grace_seconds - grain
        self._before = now - grain
        sample = Sample(iter(backend.list(layout.packs_folder(namespace))))
        self._sample, self._packs = sample, sample.entries
        self._has_ownerless = False
        marked = filter(self._is_of_pack, backend.list(layout.condemned_folder(namespace)))
        self._markers = {name_of(entry): entry for entry in marked}
        self._removed_others = self._remove_ownerless() + self._remove_dead_intents(now)
        self._intents = self._read_intents(now)
        self._generations = generations_of(files_that_count(backend, namespace))
        self._references = read_references(backend, catalogue, namespace, self._generations)

    def run(self) -> GarbageReport:
        unneeded = {name for name in self._packs if self._is_unneeded(name)}
        doomed = {name for name in unneeded if name in self._markers and self._is_old(self._markers[name])}
        self._backend.delete(layout.pack_key(self._namespace, name) for name in doomed)
        condemned = self._condemn(unneeded - self._markers.keys())
        spared = self._markers.keys() & self._packs.keys() & self._references.packs
        self._backend.delete(self._markers[name].key for name in doomed | spared)
        others = remove_in_parts(self._backend, chain(self._unneeded_pages(), self._served_generation_files()))
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

    def _is_of_pack(self, marker: Entry) -> bool:
        """Whether it is of a pack of the sample; notes where it is of none at all."""
        name = name_of(marker)
        is_marker = marker.key == _marker_key(self._namespace, name)
        if is_marker and name in self._packs:
            return True
        self._has_ownerless |= self._sample.includes(name) or not is_marker
        return False

    def _remove_ownerless(self) -> int:
        """Remove the markers without a pack.

        They are listed once more: a listing from which is removed meanwhile may leave out what counts.
        """
        if not self._has_ownerless:
            return 0
        return remove_in_parts(
            self._backend,
            (
                one.key
                for one in self._backend.list(layout.condemned_folder(self._namespace))
                if one.modified < self._before and self._is_ownerless(one)
            ),
        )

    def _is_ownerless(self, marker: Entry) -> bool:
        name = name_of(marker)
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
        return (writer or layout.pack_writer(key.rpartition("/")[2])) in self._intents.writers

    def _is_unneeded(self, pack: str) -> bool:
        needed = pack in self._references.packs or pack in self._intents.packs
        return not (needed or layout.pack_writer(pack) in self._intents.writers or self._references.unreadable)

    def _condemn(self, packs: Iterable[str]) -> int:
        """Set markers, and take those back whose pack a writer has announced meanwhile."""
        keys = {name: _marker_key(self._namespace, name) for name in packs}
        for key in keys.values():
            self._backend.put(key, b"")
        if not keys:
            return 0
        announced = self._read_intents(self._clock.now()).packs & keys.keys()
        self._backend.delete(keys[name] for name in announced)
        return len(keys) - len(announced)

    def _read_intents(self, now: float) -> Intents:
        return read_intents(self._backend, self._namespace, now=now, time_to_live_seconds=self._time_to_live)

    def _unneeded_pages(self) -> Iterator[str]:
        """They may be listed last, as those that are old were there when this run began."""
        if self._references.unreadable:
            return
        for entry in self._backend.list(layout.pages_folder(self._namespace)):
            is_needed = entry.key in self._references.page_indexes
            if not is_needed and layout.pages_writer(entry.key) not in self._intents.writers and self._is_old(entry):
                yield entry.key

    def _served_generation_files(self) -> Iterator[str]:
        old = filter(self._is_old, self._backend.list(layout.snapshots_folder(self._namespace)))
        committed = {entry.key for entry in self._generations.committed.values()}
        return (entry.key for entry in served_files(old, committed, self._intents.writers))


def _marker_key(namespace: str, pack: str) -> str:
    return f"{layout.condemned_folder(namespace)}/{pack}"
