"""Checkpoints of one preemption: the way forward, failures, retries, deadlines, cancellation, gangs."""

from __future__ import annotations

import itertools

import pytest

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import HoldPlaced, NodeLost, OrderLost, Persist, ReleaseDone
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    ApplyRetention,
    Dump,
    Frozen,
    Killed,
    Progress,
    SnapshotFound,
    Thaw,
    Thawed,
)
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint, Phase, Transfer
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload

RANK0, RANK1 = Identity("bio", "mpi", 0), Identity("bio", "mpi", 1)
KEEP = CheckpointPolicy(deadline_seconds=60, on_checkpoint_failure=OnCheckpointFailure.KEEP_RUNNING)


def pair() -> Told:
    """Two ranks of one gang on two nodes, preempted together."""
    told = Told().running("w1", RANK0).running("w2", RANK1, node="n2")
    return told.preempt(victim("w1", RANK0, gang="mpi"), victim("w2", RANK1, gang="mpi", node="n2"))


def test_the_way_forward_is_freeze_dump_kill_release() -> None:
    told = Told().running().preempt()
    assert told.orders() == ["Freeze s1.w1.1"]
    assert told.frozen().orders() == ["Dump s1.w1.1"]
    assert told.order(Dump).timeout_seconds == 60
    told.committed()
    assert told.orders() == ["Kill s1.w1.1"]
    assert not told.releases()
    told.killed()
    assert told.orders() == ["ApplyRetention s1.w1.1"]
    assert told.verdicts() == {"w1": "Committed"}
    assert told.tell(ReleaseDone("s1")).step("s1") == "Released"


def test_records_come_before_the_orders_that_they_announce() -> None:
    told = Told().running().preempt()
    assert isinstance(told.said[0], Persist)
    assert [record.uid for record in told.said[0].records] == ["s1.w1.1", "s1"]


def test_a_backup_is_resumed_and_holds_nothing() -> None:
    told = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING)
    told.frozen().committed()
    assert told.orders() == ["Thaw s1.w1.1"]
    told.tell(Thawed("s1.w1.1"))
    assert told.step("s1.w1.1") == "Ready"
    assert told.step("restore.w1") == "Running"
    assert not told.core.registry.holds


def test_a_commit_is_told_with_its_figures() -> None:
    told = Told().running().preempt()
    told.now += 2
    told.frozen()
    told.now += 3
    told.committed()
    (text,) = [getattr(i, "text", "") for i in told.said if getattr(i, "kind", "") == "CheckpointCommitted"]
    assert text == "Checkpoint md/0@1 of name-of-w1 committed: 3.0 GiB, frozen for 3.0 s"


def test_progress_is_known_and_not_persisted() -> None:
    told = Told().running().preempt().frozen()
    told.tell(Progress("s1.w1.1", Transfer(read_bytes=5)))
    assert told.said == []
    assert told.core.registry.checkpoints["s1.w1.1"].transfer.read_bytes == 5


# -- failures


def test_a_failure_aborts_and_lets_go_when_the_workload_runs_again() -> None:
    told = Told().running().preempt().frozen().failed()
    assert told.orders() == ["Abort s1.w1.1"]
    assert not told.releases()
    assert told.aborted().verdicts() == {"w1": "Evict"}


def test_a_failure_with_the_policy_keep_running_says_so() -> None:
    told = Told().running().preempt(victim(policy=KEEP)).frozen().failed().aborted()
    assert told.verdicts() == {"w1": "KeepRunning"}


def test_a_failure_that_may_be_repeated_is_attempted_again_after_the_abort() -> None:
    told = Told().running().preempt().frozen().failed(retryable=True)
    assert told.orders() == ["Abort s1.w1.1"]
    assert told.after(5).orders() == []  # the pause is over, the abort is not confirmed
    assert told.aborted().orders() == ["Freeze s1.w1.2"]
    told.frozen("s1.w1.2").committed("s1.w1.2").killed("s1.w1.2")
    assert told.verdicts() == {"w1": "Committed"}


def test_attempts_pause_longer_and_longer_and_then_shorter_until_hardly_any_time_is_left() -> None:
    """A store that is back before the deadline is not back too late."""
    told = Told().running().preempt()
    deadline = told.now + POLICY.deadline_seconds
    begun: list[float] = []
    for attempt in range(1, 20):
        if f"s1.w1.{attempt}" not in told.core.registry.checkpoints:
            break
        while told.step(f"s1.w1.{attempt}") == "Waiting":
            told.after(0.5)
        begun.append(told.now)
        told.failed(f"s1.w1.{attempt}", retryable=True).aborted(f"s1.w1.{attempt}")
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses == [1, 2, 4, 8, 16, 14.5, 7.5, 3.5, 2.0]
    assert told.verdicts() == {"w1": "Evict"}
    assert 0 < deadline - told.now < 2


def test_a_late_message_of_the_first_attempt_is_not_taken_for_the_second() -> None:
    told = Told().running().preempt().frozen().failed(retryable=True).aborted().after(1)
    assert told.step("s1.w1.2") == "Freezing"
    told.committed("s1.w1.1")
    assert told.step("s1.w1.2") == "Freezing"
    assert told.orders() == ["Abort s1.w1.1"]  # what was committed too late is discarded


def test_a_commit_that_comes_after_the_abort_was_decided_is_discarded() -> None:
    told = Told().running().preempt().frozen().after(60)
    assert told.orders() == ["Abort s1.w1.1"]
    told.committed()
    assert told.core.registry.checkpoints["s1.w1.1"].snapshot is None
    assert told.aborted().step("s1.w1.1") == "Failed"


def test_a_commit_of_another_identity_fails_the_checkpoint() -> None:
    told = Told().running().preempt().frozen().committed(identity=Identity("ml", "md"))
    assert told.orders() == ["Abort s1.w1.1"]


def test_a_freeze_that_was_obeyed_too_late_is_undone() -> None:
    told = Told().running().preempt().failed().aborted().frozen()
    assert told.orders() == ["Abort s1.w1.1"]
    told = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING).frozen().committed().tell(Thawed("s1.w1.1"))
    assert told.frozen().orders() == ["Thaw s1.w1.1"]


def _two_of_one_preemptor() -> Told:
    told = Told().running("w1").running("w2", RANK0)
    told.preempt(victim("w1"), uid="s1", release_group="ml/urgent")
    return told.preempt(victim("w2", RANK0), uid="s2", release_group="ml/urgent").frozen("s1.w1.1", "s2.w2.1")


def test_signals_that_belong_together_are_released_together() -> None:
    told = _two_of_one_preemptor().committed("s1.w1.1").killed("s1.w1.1")
    assert told.released() == []
    told.restart()
    assert told.released() == []
    told.committed("s2.w2.1", identity=RANK0).killed("s2.w2.1")
    assert sorted(told.released()) == ["s1", "s2"]


def test_who_is_not_of_the_same_preemptor_is_not_waited_for() -> None:
    told = _two_of_one_preemptor().running("w3", Identity("bio", "other"))
    told.preempt(victim("w3", Identity("bio", "other")), uid="s3", release_group="ml/patient").frozen("s3.w3.1")
    told.committed("s3.w3.1", identity=Identity("bio", "other")).killed("s3.w3.1")
    assert told.released() == ["s3"]


def test_the_deadline_of_one_ends_the_wait_of_its_companions() -> None:
    told = _two_of_one_preemptor().committed("s1.w1.1").killed("s1.w1.1")
    told.tell(HoldPlaced("s2", until=1010.0)).after(10)
    assert told.released() == ["s2", "s1"]
    assert told.verdicts() == {"w1": "Committed"}


# -- deadlines


@pytest.mark.parametrize(
    ("preemption", "seconds"),
    [
        pytest.param({}, 60, id="the policy's deadline"),
        pytest.param({"not_after": 1020.0}, 20, id="a deadline from outside that is earlier"),
        pytest.param({"not_after": 2000.0}, 60, id="a deadline from outside that is later"),
        pytest.param({"observed_at": 990.0}, 50, id="counted from when the signal was seen"),
    ],
)
def test_the_deadline_aborts_and_releases_at_once(preemption: dict[str, float], seconds: float) -> None:
    told = Told().running().preempt(**preemption).frozen()  # type: ignore[arg-type]
    assert "Abort s1.w1.1" not in told.after(seconds - 0.5).orders()
    assert told.after(0.5).orders() == ["Abort s1.w1.1"]
    assert told.verdicts() == {"w1": "Evict"}
    assert told.step("s1.w1.1") == "Aborting"


def test_a_hold_that_ends_earlier_is_a_deadline() -> None:
    told = Told().running().preempt().tell(HoldPlaced("s1", until=1010.0)).frozen().after(10)
    assert told.orders() == ["Abort s1.w1.1"]
    assert told.verdicts() == {"w1": "Evict"}


def test_the_shortest_deadline_of_all_victims_counts_because_they_are_released_together() -> None:
    short = CheckpointPolicy(deadline_seconds=10)
    told = Told().running("w1").running("w2", RANK0)
    told.preempt(victim("w1"), victim("w2", RANK0, policy=short)).after(10)
    assert told.verdicts() == {"w1": "Evict", "w2": "Evict"}


def test_a_deadline_after_the_kill_was_decided_releases_as_committed() -> None:
    told = Told().running().preempt().frozen().committed().after(60)
    assert told.verdicts() == {"w1": "Committed"}
    assert told.step("s1.w1.1") == "Killing"


def test_a_signal_whose_deadline_has_passed_freezes_nothing() -> None:
    told = Told().running().preempt(observed_at=900.0)
    assert told.orders() == []
    assert told.verdicts() == {"w1": "Evict"}


def test_a_silent_node_does_not_keep_a_record_open_and_is_asked_until_it_answers() -> None:
    told = Told().running().preempt().frozen().after(60).after(120)
    assert told.step("s1.w1.1") == "Failed"
    assert told.orders() == ["Abort s1.w1.1"]
    assert told.restart().orders() == ["Abort s1.w1.1"]
    told.aborted().after(600)
    assert told.orders() == []


def silent_about(kind: type[Thaw | Abort], policy: CheckpointPolicy = POLICY) -> Told:
    """Its node was told to thaw it, and has not answered in all that time; its scheduler takes it again."""
    told = Told().running()
    if kind is Thaw:
        told.preempt(after_commit=AfterCommit.LEAVE_RUNNING).frozen().committed()
    else:
        told.preempt().frozen()
    told.after(60).after(120)
    assert told.core.registry.checkpoints["s1.w1.1"].unconfirmed
    return told.preempt(victim(policy=policy), uid="s2")


@pytest.mark.parametrize(("kind", "answer"), [(Thaw, Thawed("s1.w1.1")), (Abort, Aborted("s1.w1.1"))])
def test_nobody_is_frozen_who_may_still_be_thawed_for_another_signal(
    kind: type[Thaw | Abort], answer: Thawed | Aborted
) -> None:
    told = silent_about(kind)
    assert told.orders() == []
    assert told.tell(answer).orders() == ["Freeze s2.w1.1"]


@pytest.mark.parametrize("kind", [Thaw, Abort])
def test_who_may_still_be_thawed_waits_until_the_deadline_only(kind: type[Thaw | Abort]) -> None:
    told = silent_about(kind).after(60)
    assert told.verdicts() == {"w1": "Evict"}
    assert told.step("s2.w1.1") == "Failed"


def test_who_may_still_be_thawed_is_frozen_when_that_is_repeated_no_more() -> None:
    told = silent_about(Thaw, CheckpointPolicy(deadline_seconds=10_000)).hold_is_released("s1")
    for _ in range(100):
        if any(one.startswith("Freeze") for one in told.after(60).orders()):
            break
    assert told.step("s2.w1.1") == "Freezing"
    assert "s1.w1.1" not in told.core.registry.checkpoints


# -- cancellation, ends, losses


@pytest.mark.parametrize("steps", [0, 1])
def test_a_cancelled_preemption_leaves_the_workload_as_it_was(steps: int) -> None:
    told = Told().running().preempt()
    if steps:
        told.frozen()
    assert told.cancel().orders() == ["Abort s1.w1.1"]
    assert told.aborted().verdicts() == {"w1": "NotNeeded"}


def test_a_preemption_that_is_cancelled_after_the_kill_stays_committed() -> None:
    told = Told().running().preempt().frozen().committed()
    assert told.cancel().orders() == []
    assert told.killed().verdicts() == {"w1": "Committed"}


def doomed(told: Told) -> Told:
    """Committed, released, and frozen still, until its scheduler deletes it."""
    return told.preempt().frozen().committed().tell(Killed("s1.w1.1", still_frozen=True))


def test_who_is_not_evicted_after_all_is_thawed_and_can_be_preempted_again() -> None:
    told = doomed(Told().running())
    assert told.verdicts() == {"w1": "Committed"}
    told.tell(ReleaseDone("s1"))
    assert told.cancel().orders() == ["Thaw s1.w1.1"]
    assert told.tells() == ["EvictionCancelled"]
    assert told.restart().orders() == ["Thaw s1.w1.1"], "and not killed, whatever is repeated"
    told.tell(Thawed("s1.w1.1"))
    assert told.step("s1.w1.1") == "Ready", "its snapshot stays good"
    hold = told.core.registry.holds["s1"]
    assert hold.verdicts == {"w1": "NotNeeded"}
    assert told.preempt(uid="s2").orders() == ["Freeze s2.w1.1"]


def test_a_release_that_waits_for_others_says_who_was_spared() -> None:
    told = Told().running().running("w2", RANK1)
    told.preempt(victim("w1"), victim("w2", RANK1)).frozen("s1.w1.1", "s1.w2.1")
    told.committed().tell(Killed("s1.w1.1", still_frozen=True)).cancel()
    assert told.orders() == ["Thaw s1.w1.1", "Abort s1.w2.1"]
    told.tell(Thawed("s1.w1.1")).aborted("s1.w2.1")
    assert told.verdicts() == {"w1": "NotNeeded", "w2": "NotNeeded"}


def test_who_is_dead_is_not_spared() -> None:
    told = Told().running().preempt().frozen().committed().killed()
    assert told.cancel().orders() == []


def test_who_continues_elsewhere_already_is_not_spared() -> None:
    told = doomed(Told().running()).tell(ReleaseDone("s1")).ended()
    told.report(Starting(workload("w2", "n2"), MD, POLICY)).tell(SnapshotFound("restore.w2", ref(1)))
    assert told.cancel().orders() == []


def test_who_is_doomed_keeps_its_identity_until_its_end_is_told() -> None:
    told = doomed(Told().running()).tell(ReleaseDone("s1"))
    told.report(Starting(workload("w2", "n2"), MD, POLICY)).tell(SnapshotFound("restore.w2", ref(1)))
    assert told.step("restore.w2") == "Waiting"
    assert told.ended().orders() == ["FindSnapshot restore.w2"]


def test_a_victim_that_ends_by_itself_fails_harmlessly() -> None:
    told = Told().running().preempt().frozen().ended()
    assert told.orders() == ["Abort s1.w1.1"]
    assert told.aborted().verdicts() == {"w1": "NotNeeded"}
    assert "CheckpointFailed" not in told.tells()


def test_a_victim_that_had_ended_before_the_signal_is_not_touched() -> None:
    told = Told().running().ended().preempt()
    assert told.orders() == []
    assert told.verdicts() == {"w1": "NotNeeded"}


def test_the_death_that_the_kill_caused_may_be_heard_before_the_answer() -> None:
    told = Told().running().preempt().frozen().committed().ended()
    assert told.verdicts() == {"w1": "Committed"}
    assert told.killed().step("s1.w1.1") == "Ready"


@pytest.mark.parametrize(
    ("told", "step", "verdict"),
    [
        pytest.param(Told().running().preempt(), "Failed", "NotNeeded", id="freezing"),
        pytest.param(Told().running().preempt().frozen(), "Failed", "NotNeeded", id="dumping"),
        pytest.param(Told().running().preempt().frozen().committed(), "Ready", "Committed", id="killing"),
    ],
)
def test_a_lost_node_ends_what_is_not_committed(told: Told, step: str, verdict: str) -> None:
    told.tell(NodeLost("n1"))
    assert told.step("s1.w1.1") == step
    assert told.verdicts() == {"w1": verdict}
    assert told.step("restore.w1") == "Ended"


def test_a_lost_order_is_repeated_soon_and_a_silent_one_later() -> None:
    told = Told().running().preempt()
    freeze = told.sent()[0]
    told.tell(OrderLost(freeze, "connection refused"))
    assert told.after(1).orders() == ["Freeze s1.w1.1"]
    assert told.after(1.9).orders() == []
    assert told.after(28).orders() == ["Freeze s1.w1.1"]


@pytest.mark.parametrize(
    ("told", "orders"),
    [
        pytest.param(Told().running().preempt(), ["Freeze s1.w1.1"], id="freezing"),
        pytest.param(Told().running().preempt().frozen(), ["Dump s1.w1.1"], id="dumping"),
        pytest.param(Told().running().preempt().frozen().committed(), ["Kill s1.w1.1"], id="killing"),
        pytest.param(Told().running().preempt().frozen().failed(), ["Abort s1.w1.1"], id="aborting"),
    ],
)
def test_a_restart_repeats_the_order_of_the_step(told: Told, orders: list[str]) -> None:
    assert told.restart().orders() == orders
    assert told.restart().orders() == orders


def test_a_restart_repeats_a_release_with_the_same_verdicts() -> None:
    told = Told().running().preempt().frozen().committed().killed()
    first = told.releases()
    assert told.restart().releases() == first


# -- repeated and overlapping signals


def test_a_repeated_signal_is_answered_with_what_stands() -> None:
    told = Told().running().preempt().frozen()
    assert told.preempt().orders() == []
    told.committed().killed()
    assert told.preempt().verdicts() == {"w1": "Committed"}
    told.tell(ReleaseDone("s1"))
    assert told.preempt().orders() == []


def test_a_signal_that_is_repeated_after_everything_is_forgotten_does_no_harm() -> None:
    told = Told().running().preempt().frozen().committed().killed().tell(ReleaseDone("s1"))
    told.after(100_000).after(100_000)
    assert told.core.records() == ()
    assert told.saved == {}
    assert told.preempt(observed_at=1000.0).orders() == []
    assert told.verdicts() == {"w1": "Evict"}


def test_a_second_preemption_waits_for_the_first_and_shares_its_snapshot() -> None:
    told = Told().running().preempt().frozen().preempt(uid="s2")
    assert told.orders() == []
    told.committed().killed()
    assert {r.signal_uid: dict(r.verdicts) for r in told.releases()} == {
        "s1": {"w1": "Committed"},
        "s2": {"w1": "Committed"},
    }


def test_a_preemption_waits_for_a_backup_under_way_and_takes_its_own_snapshot() -> None:
    told = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING).frozen()
    assert told.preempt(uid="s2").orders() == []
    told.committed().tell(Thawed("s1.w1.1"))
    assert "Freeze s2.w1.1" in told.orders()


def test_a_second_preemption_goes_on_when_the_first_is_cancelled() -> None:
    told = Told().running().preempt().frozen().preempt(uid="s2").cancel()
    assert told.orders() == ["Abort s1.w1.1"]
    assert told.aborted().orders() == ["Freeze s2.w1.1"]


def test_victims_without_a_gang_are_killed_alone_and_released_together() -> None:
    told = Told().running("w1").running("w2", RANK0)
    told.preempt(victim("w1"), victim("w2", RANK0))
    told.frozen("s1.w1.1").committed("s1.w1.1").killed("s1.w1.1")
    assert told.step("s1.w1.1") == "Ready"
    assert not told.releases()
    told.frozen("s1.w2.1").failed("s1.w2.1").aborted("s1.w2.1")
    assert told.verdicts() == {"w1": "Committed", "w2": "Evict"}


# -- gangs


def test_a_gang_passes_both_barriers_together() -> None:
    told = pair()
    assert told.orders() == ["Freeze s1.w1.1", "Freeze s1.w2.1"]
    assert told.frozen("s1.w1.1").orders() == []
    assert told.frozen("s1.w2.1").orders() == ["Dump s1.w1.1", "Dump s1.w2.1"]
    assert told.committed("s1.w1.1", identity=RANK0).orders() == []
    assert told.committed("s1.w2.1", identity=RANK1).orders() == ["Kill s1.w1.1", "Kill s1.w2.1"]
    told.killed("s1.w1.1", "s1.w2.1")
    assert told.verdicts() == {"w1": "Committed", "w2": "Committed"}


def test_one_failure_fails_the_gang_and_discards_what_is_committed() -> None:
    told = pair().frozen("s1.w1.1", "s1.w2.1").committed("s1.w1.1", identity=RANK0).failed("s1.w2.1")
    assert sorted(told.orders()) == ["Abort s1.w1.1", "Abort s1.w2.1"]
    told.aborted("s1.w1.1", "s1.w2.1")
    assert told.verdicts() == {"w1": "Evict", "w2": "Evict"}
    assert told.core.registry.checkpoints["s1.w1.1"].cancelled


def test_a_gang_is_attempted_again_as_a_whole() -> None:
    told = pair().frozen("s1.w1.1", "s1.w2.1").failed("s1.w1.1", retryable=True).after(1)
    assert told.aborted("s1.w1.1").orders() == []
    assert told.aborted("s1.w2.1").orders() == ["Freeze s1.w1.2", "Freeze s1.w2.2"]


def test_a_gang_goes_on_without_a_member_that_ended() -> None:
    told = pair().frozen("s1.w1.1").ended("w1")
    assert sorted(told.orders()) == ["Abort s1.w1.1", "Abort s1.w2.1"]
    told.aborted("s1.w1.1", "s1.w2.1")
    assert told.orders() == ["Freeze s1.w2.2"]
    told.frozen("s1.w2.2").committed("s1.w2.2", identity=RANK1).killed("s1.w2.2")
    assert told.verdicts() == {"w1": "NotNeeded", "w2": "Committed"}


def test_a_gang_whose_committed_members_node_is_lost_is_still_saved() -> None:
    told = pair().frozen("s1.w1.1", "s1.w2.1").committed("s1.w1.1", identity=RANK0).tell(NodeLost("n1"))
    assert told.step("s1.w1.1") == "Committed"
    told.committed("s1.w2.1", identity=RANK1)
    assert told.orders() == ["Kill s1.w2.1"] or told.orders() == [
        "Kill s1.w1.1",
        "ApplyRetention s1.w1.1",
        "Kill s1.w2.1",
    ]
    assert told.killed("s1.w2.1").verdicts() == {"w1": "Committed", "w2": "Committed"}


def test_a_gang_whose_member_was_preempted_without_it_is_let_go() -> None:
    told = Told().running("w1", RANK0).running("w2", RANK1, node="n2")
    told.preempt(victim("w1", RANK0), uid="s0").frozen("s0.w1.1")
    told.preempt(victim("w1", RANK0, gang="mpi"), victim("w2", RANK1, gang="mpi", node="n2"))
    assert told.orders() == []
    told.committed("s0.w1.1", identity=RANK0).killed("s0.w1.1")
    verdicts = {release.signal_uid: dict(release.verdicts) for release in told.releases()}
    assert verdicts["s1"] == {"w1": "Committed", "w2": "Evict"}


def test_retention_spares_what_is_claimed() -> None:
    told = Told().running().preempt().frozen().committed().killed()
    retain = told.order(ApplyRetention)
    assert (retain.identity, retain.retention, retain.spare) == (MD, POLICY.retention, ())


def test_an_abort_says_why() -> None:
    told = Told().running().preempt().frozen().failed()
    assert told.order(Abort).why == "the store is down"


def test_phases_are_those_that_people_see() -> None:
    told = Told().running().preempt()
    assert _checkpoint(told).phase is Phase.PENDING
    assert _checkpoint(told.tell(Frozen("s1.w1.1"))).phase is Phase.IN_PROGRESS
    assert _checkpoint(told.committed().killed()).phase is Phase.READY


def _checkpoint(told: Told) -> Checkpoint:
    return told.core.registry.checkpoints["s1.w1.1"]
