"""Restores: who waits for what, claims, failures, cold starts that say why."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import NodeLost, OrderLost
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    CheckpointFailed,
    FailWorkload,
    FindSnapshot,
    RestoreFailed,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
    StageFailed,
    StartCold,
    StartedCold,
    Thawed,
    WorkloadFailed,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload
from tests.unit.coordinator.core.restore_stories import FAIL, FORK, restore, restored, saved, start


def test_the_way_back_is_find_stage_continue() -> None:
    told = start(saved())
    assert told.orders() == ["FindSnapshot restore.w2"]
    assert told.tell(SnapshotFound("restore.w2", ref(1))).orders() == ["Stage restore.w2"]
    assert told.order(Stage).snapshot == ref(1)
    assert told.tell(Staged("restore.w2")).orders() == ["RestoreSnapshot restore.w2"]
    told.tell(RestoreSucceeded("restore.w2"))
    assert (told.step("restore.w2"), restore(told).cold, restore(told).snapshot) == ("Running", False, ref(1))
    assert told.tells() == ["Restored"]


def test_a_newer_format_is_waited_for_through_half_of_the_time() -> None:
    assert start(saved()).order(FindSnapshot).newer_seconds == POLICY.restore_deadline_seconds / 2


@pytest.mark.parametrize("restarts", [False, True])
def test_time_in_which_the_store_was_away_is_taken_from_the_wait_for_a_newer_format(restarts: bool) -> None:
    """Else the deadline would pass, and its work with it, before the node takes an older snapshot."""
    told = start(saved())
    away = StageFailed("restore.w2", "the store does not answer", retryable=True)
    asked = [told.order(FindSnapshot).newer_seconds]
    for _ in range(60):
        told.tell(away).after(1)
        asked += [order.newer_seconds for order in told.sent() if isinstance(order, FindSnapshot)]
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] == 0
    if restarts:
        assert start(told.restart()).order(FindSnapshot).newer_seconds == 0
    told.tell(SnapshotFound("restore.w2", ref(1)))
    assert told.step("restore.w2") == "Staging"


def test_a_first_start_is_cold_and_no_alarm() -> None:
    told = start(Told()).tell(SnapshotFound("restore.w2"))
    assert told.order(StartCold).why is None
    assert told.tell(StartedCold("restore.w2")).step("restore.w2") == "Running"
    assert told.tells() == []


def test_who_was_to_go_on_and_finds_nothing_says_so() -> None:
    """The snapshot may be another cluster's, and its namespace not shared."""
    told = Told().report(Starting(workload("w2"), MD, POLICY, continues=True)).tell(SnapshotFound("restore.w2"))
    why = told.order(StartCold).why
    assert why is not None
    assert "the store has none of this namespace" in why
    assert told.tells() == ["ColdStart"]


def test_a_first_start_is_cold_even_if_the_policy_forbids_cold_starts_after_failures() -> None:
    told = start(Told(), policy=FAIL).tell(SnapshotFound("restore.w2"))
    assert told.orders() == ["StartCold restore.w2"]


# -- waiting


def test_a_start_waits_for_the_checkpoint_in_flight_until_it_is_killed() -> None:
    told = start(Told().running().preempt().frozen())
    assert told.orders() == []
    assert told.committed().orders() == ["Kill s1.w1.1"]
    assert "FindSnapshot restore.w2" in told.killed().orders()


def test_a_start_goes_on_when_the_checkpoint_in_flight_failed() -> None:
    told = start(Told().running().preempt().frozen())
    told.failed().aborted()
    assert told.orders() == []  # the workload itself runs on under that identity
    told.ended("w1")
    assert told.orders() == ["FindSnapshot restore.w2"]
    assert told.order(FindSnapshot).excluding == ("s1.w1.1",)


def test_a_start_waits_while_another_workload_runs_as_the_same_identity() -> None:
    told = start(Told().running())
    assert told.orders() == []
    assert told.ended("w1").orders() == ["FindSnapshot restore.w2"]


def test_of_two_starts_of_one_identity_the_second_waits() -> None:
    told = start(start(Told(), "w2"), "w3")
    assert told.orders() == []
    assert told.ended("w2").orders() == ["FindSnapshot restore.w3"]


def test_another_replica_waits_for_nobody() -> None:
    told = start(Told().running(), identity=Identity("bio", "md", 1))
    assert told.orders() == ["FindSnapshot restore.w2"]


def test_a_checkpoint_waits_until_its_workload_runs() -> None:
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1)))
    told.preempt(victim("w2"), uid="s2")
    assert told.orders() == []
    told.tell(Staged("restore.w2"), RestoreSucceeded("restore.w2"))
    assert "Freeze s2.w2.1" in told.orders()


def test_a_snapshot_that_was_asked_for_and_is_not_there_is_named_and_not_the_newest() -> None:
    told = restored()
    told.preempt(victim("w2"), uid="s2").frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    start(told.ended("w2"), "w3", MD, FAIL, requested_snapshot=ref(1)).tell(SnapshotFound("restore.w3"))
    assert told.order(FailWorkload).why == "the requested bio/md/0/main@1 is not in the store"


@pytest.mark.parametrize(
    ("policy", "order", "kind"),
    [
        (POLICY, "StartCold restore.w2", "ColdStart"),
        (FAIL, "FailWorkload restore.w2", "RestoreFailed"),
    ],
    ids=["ColdStart", "Fail"],
)
def test_who_can_be_given_no_snapshot_goes_as_his_policy_says(policy: CheckpointPolicy, order: str, kind: str) -> None:
    told = saved().report(Starting(workload("w2"), MD, policy, refused="'x' names no snapshot"))
    assert told.orders()[-1] == order
    assert told.tells()[-1] == kind
    assert restore(told).failure == "'x' names no snapshot"


# -- claims


def test_a_claim_keeps_others_out_until_the_workload_has_ended() -> None:
    told = start(restored(), "w3", FORK, requested_snapshot=ref(1))
    assert told.orders() == []
    assert told.ended("w2").orders() == ["FindSnapshot restore.w3"]
    assert told.tell(SnapshotFound("restore.w3", ref(1))).orders() == ["Stage restore.w3"]


def test_a_claim_that_was_taken_while_the_store_was_asked_is_waited_for() -> None:
    told = start(saved(), "w2")
    start(told, "w3", FORK, requested_snapshot=ref(1))
    told.tell(SnapshotFound("restore.w2", ref(1)), SnapshotFound("restore.w3", ref(1)))
    assert told.orders() == ["Stage restore.w2"]
    assert told.ended("w2").orders() == ["FindSnapshot restore.w3"]


def test_a_fork_waits_for_the_checkpoint_that_makes_its_snapshot() -> None:
    told = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING).frozen().committed()
    assert start(told, "w3", FORK, requested_snapshot=ref(1)).orders() == []
    assert "FindSnapshot restore.w3" in told.tell(Thawed("s1.w1.1")).orders()


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        pytest.param(Identity("ml", "md"), "bio/md/0/main@1 belongs to another namespace", id="namespace"),
        pytest.param(Identity("bio", "md", 3), "bio/md/0/main@1 belongs to replica 0, this is replica 3", id="replica"),
    ],
)
def test_a_snapshot_never_crosses(identity: Identity, why: str) -> None:
    told = start(saved(), "w3", identity, requested_snapshot=ref(1))
    assert told.order(StartCold).why == why


def test_a_snapshot_of_another_identity_than_asked_for_is_refused() -> None:
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1, Identity("ml", "md"))))
    assert "another identity" in str(told.order(StartCold).why)


# -- failures


@pytest.mark.parametrize(
    ("story", "why"),
    [
        pytest.param(
            [SnapshotFound("restore.w2", None, "the manifest is damaged")], "the manifest is damaged", id="find"
        ),
        pytest.param([SnapshotFound("restore.w2")], "bio/md/0/main@1 is not in the store any more", id="gone"),
        pytest.param(
            [SnapshotFound("restore.w2", ref(1)), StageFailed("restore.w2", "a chunk is damaged")],
            "bio/md/0/main@1 could not be fetched: a chunk is damaged",
            id="stage",
        ),
        pytest.param(
            [SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"), RestoreFailed("restore.w2", "PID 7 in use")],
            "bio/md/0/main@1 could not be continued: PID 7 in use",
            id="continue",
        ),
    ],
)
def test_a_failure_starts_cold_and_says_why(story: list[SnapshotFound], why: str) -> None:
    told = start(saved()).tell(*story)
    assert told.order(StartCold).why == why
    assert "ColdStart" in told.tells()
    told.tell(StartedCold("restore.w2"))
    assert (restore(told).cold, restore(told).failure, restore(told).snapshot) == (True, why, None)


def test_a_failure_gives_up_where_the_policy_forbids_a_cold_start() -> None:
    told = start(saved(), policy=FAIL).tell(SnapshotFound("restore.w2", ref(1)), StageFailed("restore.w2", "damaged"))
    assert told.orders() == ["Stage restore.w2", "FailWorkload restore.w2"]
    assert told.tell(WorkloadFailed("restore.w2")).step("restore.w2") == "Failed"


def test_a_snapshot_that_is_gone_fails_where_the_policy_forbids_a_cold_start() -> None:
    told = start(saved(), policy=FAIL).tell(SnapshotFound("restore.w2"))
    assert told.orders() == ["FailWorkload restore.w2"]
    assert told.tells() == ["RestoreFailed"]


def test_work_that_was_let_go_is_not_lost_silently() -> None:
    told = Told().running().preempt().frozen().failed().aborted().ended()
    start(told).tell(SnapshotFound("restore.w2"))
    assert str(told.order(StartCold).why).startswith("there is no snapshot, because the checkpoint before failed")


def test_a_fetch_that_may_be_repeated_is_repeated_until_the_deadline() -> None:
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1)))
    deadline, fetches = restore(told).deadline, 0
    while told.step("restore.w2") == "Staging":
        if "Stage restore.w2" in told.orders():
            fetches += 1
            told.tell(StageFailed("restore.w2", "the store is down", retryable=True))
        else:
            told.after(1)
    assert fetches == 11  # after 1, 2, 4, 8, 16 and 32 s, and then ever sooner, for 60 s more would be too late
    assert 0 < deadline - told.now < 2
    assert restore(told).failure == "bio/md/0/main@1 could not be fetched: the store is down"


# -- restarts, losses, repetitions


@pytest.mark.parametrize(
    ("answers", "order"),
    [
        ([], "FindSnapshot restore.w2"),
        ([SnapshotFound("restore.w2", ref(1))], "Stage restore.w2"),
        ([SnapshotFound("restore.w2", ref(1)), Staged("restore.w2")], "RestoreSnapshot restore.w2"),
        ([SnapshotFound("restore.w2", None, "damaged")], "StartCold restore.w2"),
    ],
)
def test_whoever_restarts_the_order_is_given_again(answers: list[SnapshotFound], order: str) -> None:
    told = start(saved()).tell(*answers).restart()
    if not answers:
        start(told)
    assert told.orders() == [order]
    told.tell(OrderLost(told.sent()[0], "no route to host"))
    assert told.after(1).orders() == [order]


def test_repeated_reports_and_answers_change_nothing() -> None:
    told = restored()
    before = told.core.records()
    start(told, "w2").tell(
        SnapshotFound("restore.w2", ref(1)),
        Staged("restore.w2"),
        StageFailed("restore.w2", "late"),
        RestoreSucceeded("restore.w2"),
    )
    assert told.orders() == []
    assert [r for r in told.core.records() if r.uid == "restore.w2"] == [r for r in before if r.uid == "restore.w2"]


def test_a_lost_node_ends_its_restores_and_frees_their_claims() -> None:
    told = restored().tell(NodeLost("n1"))
    assert told.step("restore.w2") == "Ended"
    assert start(told, "w3").orders() == ["FindSnapshot restore.w3"]


def test_a_loss_that_may_be_older_than_the_restore_leaves_it() -> None:
    told = restored().tell(NodeLost("n1", keeps_restores=True))
    assert told.step("restore.w2") == "Running"


def test_the_kill_ends_the_restore_even_before_its_end_is_reported() -> None:
    told = restored().preempt(victim("w2"), uid="s2")
    told.frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    assert told.step("restore.w2") == "Ended"
    assert told.ended("w2").step("restore.w2") == "Ended"


def test_ended_restores_are_forgotten() -> None:
    told = restored().ended("w2").after(200_000)
    assert "restore.w2" not in told.saved
    assert told.core.registry.restores_of_identity(MD, workload("w2")) == []


def test_the_deadline_says_what_kept_the_orders_from_getting_through() -> None:
    told = start(saved())
    told.tell(OrderLost(told.order(FindSnapshot), "the store does not answer")).after(90)
    assert told.order(StartCold).why == "not restored within 90 s: the store does not answer"


# -- given up


def given_up() -> Told:
    """`w2` passed its deadline while its node continued it; the node says that it has failed it."""
    told = start(saved(), policy=FAIL).ended().tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2")).after(91)
    assert isinstance(told.order(FailWorkload), FailWorkload)
    return told.tell(WorkloadFailed("restore.w2"))


def test_who_was_given_up_while_it_came_back_keeps_its_claim_until_it_has_ended() -> None:
    """It may run all the same: a node of an earlier version answers before `runc restore` has ended."""
    told = given_up()
    assert (told.step("restore.w2"), told.orders(), told.tells()) == ("Failed", [], [])
    assert start(told, "w3", policy=FAIL).orders() == []
    assert start(told, "w4", FORK, requested_snapshot=ref(1)).orders() == []
    assert told.after(20).orders() == [], "its node is asked no more"
    assert "FindSnapshot restore.w3" in told.ended("w2").orders()


def test_who_was_given_up_while_it_came_back_is_saved_when_it_is_preempted() -> None:
    told = given_up().preempt(victim("w2"), uid="s2")
    assert (told.orders(), told.verdicts()) == (["Freeze s2.w2.1"], {})
    told.frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    assert told.verdicts() == {"w2": "Committed"}


def test_who_was_given_up_is_over_once_its_node_finds_nothing_of_it() -> None:
    told = start(given_up(), "w3", policy=FAIL).preempt(victim("w2"), uid="s2")
    told.tell(CheckpointFailed("s2.w2.1", "name-of-w2 has no processes any more", workload_gone=True))
    assert told.aborted("s2.w2.1").verdicts() == {"w2": "NotNeeded"}
    assert "FindSnapshot restore.w3" in told.orders()


def test_who_was_given_up_and_runs_is_found_by_the_next_coordinator() -> None:
    told = given_up().restart()
    assert told.orders() == ["FailWorkload restore.w2"]
    assert told.tell(RestoreSucceeded("restore.w2")).step("restore.w2") == "Running"


def test_who_was_given_up_before_its_node_continued_it_is_over() -> None:
    told = (
        start(saved(), policy=FAIL)
        .ended()
        .tell(SnapshotFound("restore.w2", ref(1)), StageFailed("restore.w2", "damaged"))
    )
    told.tell(WorkloadFailed("restore.w2"))
    assert start(told, "w3", policy=FAIL).orders() == ["FindSnapshot restore.w3"]
    assert told.preempt(victim("w2"), uid="s2").verdicts() == {"w2": "NotNeeded"}


@pytest.mark.parametrize("policy", [POLICY, FAIL])
def test_preemption_of_one_whose_node_is_silent_waits_for_its_word(policy: CheckpointPolicy) -> None:
    told = start(saved(), policy=policy).ended().tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2"))
    told.after(90).after(120)
    assert told.step("restore.w2") == "Failed"
    told.preempt(victim("w2"), uid="s2")
    assert (told.orders(), told.verdicts()) == ([], {})
    assert "Freeze s2.w2.1" in told.tell(RestoreSucceeded("restore.w2")).orders()


def test_a_silent_node_fails_the_restore_and_may_answer_after_all() -> None:
    told = start(Told()).tell(SnapshotFound("restore.w2")).after(90).after(120)
    assert told.step("restore.w2") == "Failed"
    assert start(told, "w3").orders() == []  # it may run all the same
    assert "StartCold restore.w2" in told.restart().orders()
    assert told.tell(StartedCold("restore.w2")).step("restore.w2") == "Running"
