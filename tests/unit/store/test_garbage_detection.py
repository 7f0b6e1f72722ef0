"""Which namespaces should be collected, by names and dates: whoever looks reads no object."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.garbage import GRACE_SECONDS
from cedana_sched.store.garbage_detection import (
    IDLE_SECONDS,
    SECOND_RUN_SECONDS,
    Leftovers,
    look_for_leftovers,
    seconds_until_due,
)
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take

NAMESPACE = "team-a"
NOW = 1_000_000.0


def test_what_is_looked_at_is_not_read(tmp_path: Path) -> None:
    store = SnapshotStore(CountingBackend(tmp_path))
    ref = take(store, Identity(NAMESPACE, "job"), {"pages-1.img": bytes(range(256)) * 320}).ref
    backend = CountingBackend(tmp_path)

    assert look_for_leftovers(backend, NAMESPACE) == Leftovers(is_there=True)
    store.remove(ref)
    store.collect_in_turn(NAMESPACE, 0)
    found = look_for_leftovers(backend, NAMESPACE)

    assert found.is_there
    assert found.condemned is not None
    assert found.collected is not None
    assert backend.reads == 0
    assert sum(backend.requests.values()) <= 2 * 5


def test_of_what_collections_leave_nothing_is_left_over(tmp_path: Path) -> None:
    store = SnapshotStore(CountingBackend(tmp_path))
    ref = take(store, Identity(NAMESPACE, "job"), {"core.img": b"x"}).ref
    store.remove(ref)
    for _ in range(2):
        store.collect_garbage(NAMESPACE, grace_seconds=0)
    assert list(CountingBackend(tmp_path).list(layout.ROOT)), "the number that must not come back"
    assert look_for_leftovers(CountingBackend(tmp_path), NAMESPACE) == Leftovers(is_there=False)
    assert look_for_leftovers(CountingBackend(tmp_path), "another") == Leftovers(is_there=False)


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        (Leftovers(is_there=False), IDLE_SECONDS),
        (Leftovers(is_there=True), 0),
        (Leftovers(is_there=True, collected=NOW - 60), IDLE_SECONDS - 60),
        (Leftovers(is_there=True, collected=NOW - IDLE_SECONDS), 0),
        (Leftovers(is_there=True, collected=NOW - 60, condemned=NOW - 60), SECOND_RUN_SECONDS - 60),
        (Leftovers(is_there=True, collected=NOW - SECOND_RUN_SECONDS, condemned=NOW - SECOND_RUN_SECONDS), 0),
        # a manifest that nobody can read keeps what is condemned
        (Leftovers(is_there=True, collected=NOW - 1000, condemned=NOW - 2 * IDLE_SECONDS), IDLE_SECONDS - 1000),
        # dates of the future, which nobody's clock has written
        (Leftovers(is_there=True, collected=NOW * 1e6), IDLE_SECONDS),
        (Leftovers(is_there=True, collected=NOW * 1e6, condemned=NOW * 1e6), IDLE_SECONDS),
    ],
)
def test_when_it_is_due(found: Leftovers, seconds: float) -> None:
    assert seconds_until_due(found, NOW) == seconds


def test_the_second_run_finds_the_grace_period_over() -> None:
    assert SECOND_RUN_SECONDS > GRACE_SECONDS
