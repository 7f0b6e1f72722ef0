"""Writers of one generation against each other, in orders that a seed names, with and without conditional create.

Whoever is told that he committed has; nobody else is told so; and what a reader has once seen committed stays.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cedana_sched.model.errors import CommitConflictError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import commit, layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.intents import Intent
from cedana_sched.store.manifest_format import encode_manifest
from tests.servers.simulated import Interleaving, SimulatedBackend
from tests.unit.store.test_garbage_races import manifest_of

REF = SnapshotRef(Identity("team-a", "job"), 1)
ADVANCES = [0.0] * 20 + [1.0]


class Race:
    """Four writers that all want to be generation 1."""

    def __init__(self, *, conditional: bool) -> None:
        self.backend = SimulatedBackend()
        self.conditional = conditional
        self.told: list[str] = []
        self.seen: list[str] = []

    def writer(self, number: int) -> Callable[[], None]:
        name = f"{9 - number}".zfill(32)

        def act() -> None:
            backend = self.backend
            intent = f"{layout.intents_folder('team-a')}/{name}"
            backend.put(intent, msgspec.msgpack.encode(Intent(name, REF.identity)))
            data = encode_manifest(manifest_of(REF, name, (), backend.time))
            try:
                commit.commit_manifest(backend, Catalogue(backend), REF, name, data, conditional=self.conditional)
            except CommitConflictError:
                return
            self.told.append(name)

        return act

    def look(self) -> None:
        catalogue = Catalogue(self.backend)
        entry = catalogue.newest_generations_of(REF.identity).committed.get(REF)
        if entry is not None:
            self.seen.append(catalogue.read_summary(REF, entry).writer)

    @property
    def broken(self) -> bool:
        return len(self.told) > 1 or len(set(self.seen)) > 1 or self.told != self.seen[-1:]

    def run(self, seed: int) -> Race:
        switch = 0.5 if seed % 2 else 0.1
        Interleaving(self.backend, seed, switch).run([self.writer(n) for n in range(4)], ADVANCES, self.look)
        self.look()
        return self


@pytest.mark.parametrize("conditional", [True, False])
def test_exactly_one_writer_is_told_that_it_committed(conditional: bool) -> None:
    races = [Race(conditional=conditional).run(seed) for seed in range(200)]

    assert not any(race.broken for race in races)
    assert sum(bool(race.told) for race in races) > (199 if conditional else 50)


def test_the_check_can_fail_without_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_has_other_claim", lambda *_: False)

    assert any(Race(conditional=False).run(seed).broken for seed in range(200))
