"""A writer that was away for longer than its lease never commits: a collection may have taken its packs meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cedana_sched.model.errors import RetryableError, StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.intents import TIME_TO_LIVE_SECONDS, IntentLease
from tests.servers.simulated import SimulatedBackend

WORKLOAD = Identity("team-a", "job")


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend()


@pytest.fixture
def lease(backend: SimulatedBackend) -> Iterator[IntentLease]:
    lease = IntentLease(backend, "f" * 32, WORKLOAD)
    yield lease
    lease.release()


def sleep_until_later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """As a machine that is suspended: its monotonic clock does not count that."""
    real, stands_still = time.clock_gettime, {time.CLOCK_MONOTONIC}
    monkeypatch.setattr(
        "cedana_sched.store.intents.time.clock_gettime",
        lambda clock: real(clock) + (0.0 if clock in stands_still else seconds),
    )


def test_a_heartbeat_after_a_lapse_does_not_mend_it(lease: IntentLease, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep_until_later(monkeypatch, TIME_TO_LIVE_SECONDS + 1)
    lease.announce_packs(())

    assert not lease.is_valid
    with pytest.raises(StoreUnavailableError, match="take the snapshot again") as refused:
        lease.require_valid()
    assert isinstance(refused.value, RetryableError)


def test_a_suspended_machine_counts_as_away(lease: IntentLease, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep_until_later(monkeypatch, TIME_TO_LIVE_SECONDS + 1)

    with pytest.raises(StoreUnavailableError, match="for 180 s"):
        lease.require_valid()


def test_a_virtual_machine_that_was_paused_sees_it_by_the_dates_of_the_store(
    lease: IntentLease, backend: SimulatedBackend
) -> None:
    backend.time += TIME_TO_LIVE_SECONDS + 1

    with pytest.raises(StoreUnavailableError, match="for 180 s"):
        lease.require_valid()


def test_heartbeats_in_time_keep_a_lease_for_as_long_as_the_dump_lasts(
    lease: IntentLease, backend: SimulatedBackend
) -> None:
    for _ in range(20):
        backend.time += TIME_TO_LIVE_SECONDS / 4
        lease.announce_packs(())

    lease.require_valid()


def test_a_store_whose_clock_was_set_back_ends_no_lease(lease: IntentLease, backend: SimulatedBackend) -> None:
    backend.time -= 3600

    lease.require_valid()


def test_an_intent_is_announced_anew_right_before_the_commit(lease: IntentLease, backend: SimulatedBackend) -> None:
    backend.time += TIME_TO_LIVE_SECONDS / 2
    lease.require_valid()

    (entry,) = backend.list(layout.intents_folder("team-a"))
    assert entry.modified == backend.time
