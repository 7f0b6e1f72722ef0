"""Records are lost with their objects, by a namespace's deletion or a restored backup: a leader carries on without."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from cedana_sched.model.identity import Identity
from cedana_sched.model.records import Checkpoint, HoldStep, PreemptionHold
from tests.unit.coordinator.core.core_builders import Told, victim

OTHER = Identity("bio", "other")
UIDS = ("s1.w1.1", "s1.w2.1")


def _held() -> Told:
    """Two pods that are running, of one gang; both are about to be frozen."""
    told = Told().running().running("w2", OTHER)
    return told.preempt(victim("w1", gang="g"), victim("w2", OTHER, gang="g"))


def _frozen() -> Told:
    return _held().frozen(*UIDS)


def _committed() -> Told:
    return _frozen().committed().committed("s1.w2.1", identity=OTHER)


def _doomed() -> Told:
    return _committed().killed(*UIDS, still_frozen=True)


def _failing() -> Told:
    return _frozen().failed(retryable=True)


@pytest.mark.parametrize("story", [_held, _frozen, _committed, _doomed, _failing])
def test_whatever_is_lost_the_next_leader_begins_and_no_eviction_is_held_past_its_deadline(
    story: Callable[[], Told],
) -> None:
    whole = story().saved
    assert any(isinstance(record, PreemptionHold) for record in whole.values())
    assert any(isinstance(record, Checkpoint) for record in whole.values())
    for count in range(1, len(whole) + 1):
        for lost in itertools.combinations(whole, count):
            told = story()
            for uid in lost:
                del told.saved[uid]
            told.restart().ended("w1")
            for _ in range(10):
                told.after(10)
            assert not [hold for hold in told.core.registry.holds.values() if hold.step is HoldStep.HOLDING], lost


def test_a_victim_whose_record_is_lost_goes_with_the_others() -> None:
    told = _held()
    del told.saved["s1.w2.1"]
    told.restart().frozen("s1.w1.1").committed().killed(still_frozen=True)
    assert told.verdicts() == {"w1": "Committed"}
