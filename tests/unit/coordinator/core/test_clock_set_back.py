"""A clock that was wrong for a moment and is set back costs at most what was under way then, and nothing later."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Preempted, Starting
from cedana_sched.coordinator.core import Tick
from cedana_sched.coordinator.core.turn import SET_BACK_SECONDS
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Verdict, Victim
from cedana_sched.model.records import Checkpoint, Record, Restore
from tests.unit.coordinator.core import simulation
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, victim, workload
from tests.unit.coordinator.core.simulation import Simulation, play

HOUR = 3600.0
LONG = CheckpointPolicy(deadline_seconds=600, restore_deadline_seconds=90)


def ahead(told: Told) -> Told:
    """One look while the clock is an hour ahead is enough."""
    told.now += HOUR
    return told.tell(Tick())


def right_again(told: Told, passed: float = 5.0) -> Told:
    told.now += passed - HOUR
    return told.tell(Tick())


def record(told: Told, uid: str) -> Record:
    found = told.core.registry.get(uid)
    assert found is not None
    return found


def test_preemptions_are_saved_as_soon_as_the_clock_is_right() -> None:
    told = right_again(ahead(Told().running()))
    told.preempt()
    assert told.orders() == ["Freeze s1.w1.1"]
    assert record(told, "s1").deadline == told.now + POLICY.deadline_seconds
    assert told.verdicts() == {}


def test_what_was_begun_by_the_wrong_clock_ends_in_its_time() -> None:
    told = ahead(Told().running().running("w2", Identity("bio", "x")))
    told.preempt()
    told.report(Starting(workload("w3"), Identity("bio", "y"), POLICY))
    right_again(told)
    for uid, seconds in (("s1", 60), ("s1.w1.1", 60), ("restore.w3", 90)):
        assert record(told, uid).deadline == told.now + seconds
        assert record(told, uid).created_at <= told.now
        assert told.saved[uid] == record(told, uid), "it must outlive the coordinator"
    told.after(59)
    assert told.step("s1") == "Holding"
    told.after(2)
    assert told.verdicts() == {"w1": Verdict.EVICT}
    told.after(30)
    assert "StartCold restore.w3" in told.orders()


def test_what_was_begun_before_keeps_its_deadline() -> None:
    told = Told().running().preempt(victim(policy=LONG)).frozen()
    deadline = told.now + 600
    told.now += 40
    told.tell(Tick())
    told.now -= 35  # more than another API server's clock is apart
    told.tell(Tick())
    assert record(told, "s1").deadline == record(told, "s1.w1.1").deadline == deadline


def test_victims_of_one_preemption_keep_the_earliest_deadline_of_them() -> None:
    told = ahead(Told().running().running("w2", Identity("bio", "x")))
    told.preempt(victim(), victim("w2", Identity("bio", "x"), LONG))
    right_again(told)
    assert {record(told, uid).deadline for uid in ("s1", "s1.w1.1", "s1.w2.1")} == {told.now + 60}


def test_orders_are_repeated_as_often_as_ever() -> None:
    told = right_again(ahead(Told().running()).preempt(victim(policy=LONG)))
    told.after(told.core.timing.resend)
    assert told.orders() == ["Freeze s1.w1.1"]
    at = told.core.next_deadline()
    assert at is not None
    assert at <= told.now + 2 * told.core.timing.resend


def test_pause_after_a_failed_attempt_ends() -> None:
    told = ahead(Told().running()).preempt(victim(policy=LONG)).failed(retryable=True).aborted()
    assert told.step("s1.w1.2") == "Waiting"
    right_again(told)
    told.after(told.core.timing.retry_most)
    assert told.orders() == ["Freeze s1.w1.2"]


def test_who_starts_after_a_snapshot_did_not_run_beside_it() -> None:
    told = ahead(Told()).preempt(victim()).frozen().committed().killed().hold_is_released()
    right_again(told)
    told.now += 60
    later = Victim(workload("w2", "n2"), MD, POLICY, started_at=told.now - 30)
    told.report(Preempted(Signal("s2", "kueue", (later,), "InCohortReclamation", told.now)))
    assert told.orders() == ["Freeze s2.w2.1"]


@pytest.mark.parametrize("is_right", [False, True])
def test_next_coordinator_finds_what_a_wrong_clock_has_noted(is_right: bool) -> None:
    told = ahead(Told().running()).preempt(victim(policy=LONG))
    if is_right:
        right_again(told)
    else:
        told.now += 5 - HOUR
    told.restart()
    for one in told.core.records():
        assert one.created_at <= told.now
        if isinstance(one, Checkpoint | Restore):
            assert one.deadline <= told.now + 600
    assert told.orders() == ["Freeze s1.w1.1"]
    told.after(600)
    assert told.verdicts() == {"w1": Verdict.EVICT}


class JumpsAhead(Simulation):
    """Its clock is ahead now and then, for as long as some messages take."""

    def step(self) -> None:
        if self.rng.random() < 0.05:
            ahead = SET_BACK_SECONDS + self.rng.random()
            self.now += ahead
            self.tell(Tick())
            for _ in range(self.rng.randrange(4)):
                self.deliver()
            self.now -= ahead
        super().step()


def test_invariants_hold_whenever_the_clock_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for records that are forgotten early: their late answers are for whoever has the same uid."""
    monkeypatch.setattr(simulation, "TIMING", replace(simulation.TIMING, remember=3600.0))
    for seed in range(400):
        play(seed, JumpsAhead)
