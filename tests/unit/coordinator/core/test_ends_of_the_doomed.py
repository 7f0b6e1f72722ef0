"""A committed pod that nobody deletes is ended in the end: long after its release, never while a hold stands."""

from __future__ import annotations

import pytest

from cedana_sched.coordinator.core import PublishEvent, forbidden_order
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Kill, Killed
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.records import Checkpoint
from tests.unit.coordinator.core.core_builders import POLICY, Told, victim, workload

OTHER = Identity("bio", "other")
LONG = CheckpointPolicy()
PATIENCE = Told().core.timing.patience


def doomed() -> Told:
    """`w1` is committed for `s1`, and waits for its deletion; the hold is being released."""
    return Told().running().preempt().frozen().committed().killed(still_frozen=True)


def record(told: Told, uid: str = "s1.w1.1") -> Checkpoint:
    return told.core.registry.checkpoints[uid]


def test_it_is_ended_when_it_is_not_deleted_after_its_release() -> None:
    told = doomed().hold_is_released().after(PATIENCE - 1)
    assert told.orders() == []
    told.after(1)
    assert told.sent() == [Kill("s1.w1.1", workload("w1"), insist=True)]
    assert [one.text for one in told.said if isinstance(one, PublishEvent) and one.kind == "NotDeleted"] == [
        "name-of-w1 was released and is not deleted after 60 s: it is killed; snapshot md/0@1 stays"
    ]
    told.killed()
    assert not record(told).kill_pending
    assert told.step("restore.w1") == "Ended"
    assert told.after(PATIENCE).orders() == []


def test_a_slower_companion_keeps_it_alive() -> None:
    told = Told().preempt(victim("w1", policy=LONG), release_group="one preemptor")
    told.preempt(victim("w2", OTHER, LONG), uid="s2", release_group="one preemptor")
    told.frozen("s1.w1.1", "s2.w2.1").committed().killed(still_frozen=True)
    for _ in range(23):
        assert "Kill s1.w1.1" not in told.after(10).orders(), "it is killed while its eviction is held"
    told.committed("s2.w2.1", identity=OTHER).killed("s2.w2.1", still_frozen=True)
    assert sorted(told.released()) == ["s1", "s2"]
    told.after(PATIENCE)
    assert told.orders() == [], "its scheduler was not told yet that it may go on"
    told.hold_is_released("s1", "s2")
    assert told.after(PATIENCE - 1).orders() == []
    assert told.after(1).orders() == ["Kill s1.w1.1", "Kill s2.w2.1"]


def test_a_hold_that_joined_its_checkpoint_keeps_it_alive_too() -> None:
    told = doomed()
    told.preempt(victim("w1"), victim("w2", OTHER), uid="s2")
    told.frozen("s2.w2.1").hold_is_released("s1")
    assert told.step("s2.w1.1") == "Ready", "it joined the checkpoint of s1"
    assert "Kill s1.w1.1" not in told.after(POLICY.deadline_seconds - 1).orders()
    told.committed("s2.w2.1", identity=OTHER).killed("s2.w2.1").hold_is_released("s2")
    assert told.after(PATIENCE - 1).orders() == []
    assert told.after(1).orders() == ["Kill s1.w1.1"]


def test_a_hold_that_comes_while_its_end_is_ordered_stops_the_repetitions() -> None:
    told = doomed().hold_is_released().after(PATIENCE)
    told.preempt(victim("w1"), victim("w2", OTHER), uid="s2")
    assert "Kill s1.w1.1" not in told.after(told.core.timing.resend).orders()
    told.frozen("s2.w2.1").committed("s2.w2.1", identity=OTHER).killed("s2.w2.1").hold_is_released("s2")
    assert "Kill s1.w1.1" in told.after(PATIENCE + told.core.timing.resend_most).orders()


def test_who_is_spared_after_the_release_is_not_ended() -> None:
    told = doomed().hold_is_released().cancel()
    assert told.orders() == ["Thaw s1.w1.1"]
    assert told.after(PATIENCE).orders() == ["Thaw s1.w1.1"]  # not confirmed


def test_who_is_deleted_is_not_ended() -> None:
    told = doomed().hold_is_released().ended()
    assert not record(told).kill_pending
    assert told.after(PATIENCE).orders() == []


def test_a_coordinator_that_is_started_anew_ends_it_at_the_same_time() -> None:
    told = doomed().hold_is_released().after(PATIENCE - 1).restart()
    assert told.orders() == []
    assert told.after(1).orders() == ["Kill s1.w1.1"]
    assert told.restart().orders() == ["Kill s1.w1.1"]


def test_a_silent_node_hears_it_again() -> None:
    told = doomed().hold_is_released().after(PATIENCE)
    assert told.after(told.core.timing.resend).orders() == ["Kill s1.w1.1"]
    told.tell(Killed("s1.w1.1", still_frozen=True))  # the answer to the first order, late
    assert record(told).kill_pending
    assert told.after(told.core.timing.resend * 2).orders() == ["Kill s1.w1.1"]


def test_an_answer_that_comes_when_it_was_given_up_dooms_it_all_the_same() -> None:
    told = Told().running().preempt().frozen().committed()
    told.after(POLICY.deadline_seconds + told.core.timing.confirm)
    assert record(told).unconfirmed
    told.hold_is_released().killed(still_frozen=True)
    assert (record(told).unconfirmed, record(told).kill_pending) == (False, True)
    assert told.after(PATIENCE).order(Kill).insist


def test_it_is_remembered_until_there_was_time_to_end_it() -> None:
    """The hold lasts longer than records are remembered: at its end there is still somebody who knows."""
    told = doomed().after(Told().core.timing.remember + 1)
    assert told.hold_is_released().after(PATIENCE).orders() == ["Kill s1.w1.1"]


@pytest.mark.parametrize("released", [False, True])
def test_the_invariant_names_the_hold_that_stands(*, released: bool) -> None:
    told = doomed()
    if released:
        told.hold_is_released()
    broken = forbidden_order(told.core, Kill("s1.w1.1", workload("w1"), insist=True))
    assert broken == (None if released else "4: w1 is ended while s1 is Releasing")
