"""Garbage collection against writers, in thousands of orders: no committed snapshot ever loses a pack.

The actors call what the product calls; only the bytes are left out. The same orders with a careless writer or an
impatient collector do lose packs: the check can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.errors import CommitConflictError, NotFoundError, StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import Chunks, Manifest, SnapshotMetadata, SnapshotSummary, TransferStats
from cedana_sched.store import bounded_listing, layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.commit import commit_manifest
from cedana_sched.store.garbage import (
    COMMIT_WINDOW_SECONDS,
    GRACE_SECONDS,
    collect_garbage,
    condemned_packs,
    require_packs,
)
from cedana_sched.store.intents import TIME_TO_LIVE_SECONDS, Intent
from cedana_sched.store.manifest_format import encode_manifest
from cedana_sched.store.previous_generation import load_previous_manifest
from cedana_sched.store.retention import remove_snapshot
from tests.servers.simulated import Interleaving, SimulatedBackend

WORKLOAD = Identity("team-a", "job")
REQUEST_TIMEOUT_SECONDS = 120.0
ADVANCES = [0.0] * 30 + [1.0, 10.0, 60.0, 200.0, 1000.0]
SECONDS = [0.0] * 30 + [1.0]
"""A collection, which is of dozens of operations, fits into the time that a writer has for its commit."""


def manifest_of(ref: SnapshotRef, writer: str, packs: tuple[str, ...], now: float) -> Manifest:
    summary = SnapshotSummary(
        ref=ref,
        writer=writer,
        checkpoint_uid=writer,
        committed_at=now,
        taken_at=now,
        reason="",
        adapter="",
        labels={},
        stats=TransferStats(),
        packs=packs,
        page_index=None,
    )
    metadata = SnapshotMetadata(checkpoint_uid=writer, compatibility=Compatibility("x86_64"), taken_at=now)
    return Manifest(summary=summary, metadata=metadata, streams=(), chunks=Chunks(b"", b"", b"", b"", b"", b""), seed=1)


class World:
    """One store, its actors, and the invariant."""

    def __init__(
        self,
        *,
        careful: bool = True,
        grace_seconds: float = GRACE_SECONDS,
        time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
    ) -> None:
        self.backend = SimulatedBackend()
        self.careful = careful
        self.grace_seconds = grace_seconds
        self.time_to_live_seconds = time_to_live_seconds
        self.committed = 0
        self.removed_packs = 0
        self.lost: set[str] = set()

    def writer(self, number: int) -> Callable[[], None]:
        """Four generations in a row, each upon the newest, as `SnapshotStore.begin` and `commit` do it."""

        def act() -> None:
            for generation in range(4):
                try:
                    self._write(f"{number}{generation}".zfill(32))
                except (CommitConflictError, StoreUnavailableError):
                    continue
                self.committed += 1

        return act

    def _write(self, name: str) -> None:
        backend, namespace = self.backend, WORKLOAD.namespace
        catalogue = Catalogue(backend)
        intent = f"{layout.intents_folder(namespace)}/{name}"
        backend.give_up_writes_after(None)
        backend.put(intent, msgspec.msgpack.encode(Intent(name, WORKLOAD)))
        generations = catalogue.newest_generations_of(WORKLOAD)
        base: tuple[str, ...] = ()
        if (latest := generations.latest_committed_of(WORKLOAD)) is not None:
            previous = load_previous_manifest(catalogue, latest)
            base = previous.summary.packs if previous else ()
            backend.put(intent, msgspec.msgpack.encode(Intent(name, WORKLOAD, base)))
        unusable = condemned_packs(backend, namespace, base)
        packs = (*(pack for pack in base if pack not in unusable), f"{name}-000000")
        backend.put(layout.pack_key(namespace, packs[-1]), b"bytes")
        checked_at = backend.time
        if self.careful:
            require_packs(backend, namespace, name, packs)
        if backend.time - checked_at > COMMIT_WINDOW_SECONDS:
            raise StoreUnavailableError("too slow")
        backend.give_up_writes_after(backend.time + REQUEST_TIMEOUT_SECONDS)
        ref = SnapshotRef(WORKLOAD, generations.next_number(WORKLOAD))
        data = encode_manifest(manifest_of(ref, name, packs, backend.time))
        commit_manifest(backend, catalogue, ref, name, data, conditional=True)
        backend.delete([intent])

    def collector(self) -> None:
        for _ in range(15):
            report = collect_garbage(
                self.backend,
                Catalogue(self.backend),
                WORKLOAD.namespace,
                grace_seconds=self.grace_seconds,
                time_to_live_seconds=self.time_to_live_seconds,
            )
            self.removed_packs += report.removed_packs

    def remover(self) -> None:
        catalogue = Catalogue(self.backend)
        for _ in range(6):
            latest = catalogue.newest_generations_of(WORKLOAD).latest_committed_of(WORKLOAD)
            if latest is not None:
                try:
                    remove_snapshot(self.backend, catalogue, latest)
                except NotFoundError:
                    continue

    def look(self) -> None:
        """The invariant: whatever a committed manifest names is there."""
        catalogue = Catalogue(self.backend)
        for ref, entry in catalogue.newest_generations_of(WORKLOAD).committed.items():
            for pack in catalogue.read_summary(ref, entry).packs:
                if layout.pack_key(WORKLOAD.namespace, pack) not in self.backend.objects:
                    self.lost.add(f"{ref}: {pack}")

    def run(self, seed: int, advances: list[float] = ADVANCES) -> World:
        actors = [self.writer(1), self.writer(2), self.writer(3), self.collector, self.collector, self.remover]
        switch = 0.15 if seed % 2 else 0.03
        Interleaving(self.backend, seed, switch).run(actors, advances, self.look)
        return self


@pytest.mark.parametrize("sampled", [bounded_listing.MOST_SAMPLED, 2], ids=["whole", "in samples"])
def test_no_order_loses_a_pack(sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_listing, "MOST_SAMPLED", sampled)
    worlds = [World().run(seed) for seed in range(100)]

    assert [world.lost for world in worlds if world.lost] == []
    assert sum(world.committed for world in worlds) > 100
    assert sum(world.removed_packs for world in worlds) > 50


@pytest.mark.parametrize(
    ("fault", "advances"),
    [({"careful": False}, ADVANCES), ({"grace_seconds": 0.0, "time_to_live_seconds": 0.0}, SECONDS)],
    ids=["a careless writer", "an impatient collector"],
)
def test_the_check_can_fail(fault: dict[str, Any], advances: list[float]) -> None:
    assert any(World(**fault).run(seed, advances).lost for seed in range(300))
