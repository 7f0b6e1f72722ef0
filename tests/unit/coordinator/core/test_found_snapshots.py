"""What a node has found may be late, damaged or gone: what is continued then, and what is said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core.instructions import PublishEvent, Severity
from cedana_sched.coordinator.core.restore_obstacles import MOST_DAMAGED, STALE_ANSWERS
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import (
    FailWorkload,
    FindSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
    StageFailed,
    StartCold,
)
from cedana_sched.model.policy import CheckpointPolicy
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload
from tests.unit.coordinator.core.restore_stories import FAIL, restore, restored, saved, start


def test_an_answer_that_is_older_than_the_newest_commit_is_asked_again() -> None:
    told = restored().preempt(victim("w2"), uid="s2")
    told.frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    start(told, "w3").tell(SnapshotFound("restore.w3", ref(1)))
    assert told.step("restore.w3") == "Waiting"
    told.tell(SnapshotFound("restore.w3", ref(2)))
    assert told.order(Stage).snapshot == ref(2)


def test_an_older_answer_is_asked_again_at_once_and_believed_long_before_the_deadline() -> None:
    told = start(saved(), policy=CheckpointPolicy(restore_deadline_seconds=10))
    told.core.registry.update(replace(restore(told), newest_snapshot=ref(2)))
    asked = 0
    while told.step("restore.w2") == "Waiting":
        if "FindSnapshot restore.w2" in told.orders():
            asked += 1
            told.tell(SnapshotFound("restore.w2", ref(1)))
        else:
            told.after(1)
    assert asked == STALE_ANSWERS
    assert (told.step("restore.w2"), told.order(Stage).snapshot) == ("Staging", ref(1))


# -- damaged snapshots


def saved_twice(policy: CheckpointPolicy = POLICY) -> Told:
    """`w3` fetches generation 2, the newest."""
    told = restored().preempt(victim("w2"), uid="s2")
    told.frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1").ended("w2")
    return start(told, "w3", policy=policy).tell(SnapshotFound("restore.w3", ref(2)))


def avoided(told: Told) -> tuple[int, ...]:
    """The generations that the last `FindSnapshot` passes over."""
    return [order for order in told.sent() if isinstance(order, FindSnapshot)][-1].avoiding


def damaged(uid: str = "w3") -> StageFailed:
    return StageFailed(f"restore.{uid}", "chunk 7 is damaged", damaged=True)


def test_late_answer_on_a_damaged_snapshot_leaves_the_lookup_as_it_is() -> None:
    """An order to fetch was repeated: one read found damage, and an earlier one, told of later, did not."""
    told = saved_twice().tell(damaged()).tell(Staged("restore.w3"))
    assert told.step("restore.w3") == "Waiting"
    assert told.tell(SnapshotFound("restore.w3", ref(1))).order(Stage).snapshot == ref(1)


def test_an_older_snapshot_is_continued_where_the_newest_cannot_be_read_whole() -> None:
    told = saved_twice().tell(damaged())
    assert (told.step("restore.w3"), avoided(told)) == ("Waiting", (2,))
    (delayed,) = [one for one in told.said if isinstance(one, PublishEvent)]
    told.tell(SnapshotFound("restore.w3", ref(1)))
    assert told.order(Stage).snapshot == ref(1)
    (scheduled,) = [one for one in told.said if isinstance(one, PublishEvent)]
    assert (delayed.kind, delayed.severity) == ("RestoreDelayed", Severity.WARNING)
    assert delayed.text == "md/0@2 cannot be read whole: chunk 7 is damaged; an older snapshot is looked for"
    assert scheduled.severity is Severity.WARNING
    assert scheduled.text.endswith("because md/0@2 cannot be read whole")
    told.tell(Staged("restore.w3"), RestoreSucceeded("restore.w3"))
    assert (restore(told, "w3").snapshot, restore(told, "w3").cold) == (ref(1), False)


@pytest.mark.parametrize("policy", [POLICY, FAIL])
def test_the_policy_holds_where_no_snapshot_can_be_read_whole(policy: CheckpointPolicy) -> None:
    told = saved_twice(policy).tell(damaged(), SnapshotFound("restore.w3", ref(1)), damaged())
    assert avoided(told) == (1, 2)
    told.tell(SnapshotFound("restore.w3"))
    why = "md/0@1, md/0@2 cannot be read whole, and there is no older one: chunk 7 is damaged"
    assert restore(told, "w3").failure == why
    assert told.step("restore.w3") == ("StartingCold" if policy is POLICY else "FailingWorkload")


def test_the_very_snapshot_that_was_asked_for_is_no_other_one() -> None:
    told = start(saved(), requested_snapshot=ref(1)).tell(SnapshotFound("restore.w2", ref(1)), damaged("w2"))
    assert told.step("restore.w2") == "StartingCold"


def test_no_more_than_some_damaged_snapshots_are_passed_over() -> None:
    told = start(Told(), policy=FAIL)
    for number in range(MOST_DAMAGED):
        told.tell(SnapshotFound("restore.w2", ref(1000 - number)), damaged("w2"))
        assert told.step("restore.w2") == "Waiting"
    told.tell(SnapshotFound("restore.w2", ref(1)), damaged("w2"))
    assert len(restore(told).damaged) == MOST_DAMAGED
    why = "bio/md/0/main@1 cannot be read whole, nor can 16 newer ones: chunk 7 is damaged"
    assert told.order(FailWorkload).why == why


def test_a_node_that_was_to_find_an_older_one_is_not_believed_a_newer_one() -> None:
    told = saved_twice().tell(damaged(), SnapshotFound("restore.w3", ref(3)))
    assert told.step("restore.w3") == "StartingCold"
    why = "the node found bio/md/0/main@3, and was to find one that is older than bio/md/0/main@2"
    assert told.order(StartCold).why == why


def test_a_newer_one_that_is_known_to_be_committed_is_continued_all_the_same() -> None:
    told = saved_twice()  # generation 2 was committed, and its node was late to see it
    told = start(told.ended("w3"), "w4").tell(*[SnapshotFound("restore.w4", ref(1))] * STALE_ANSWERS, damaged("w4"))
    assert avoided(told) == (1,)
    told.tell(SnapshotFound("restore.w4", ref(2)))
    assert told.order(Stage).snapshot == ref(2)


def test_what_is_damaged_outlives_the_coordinator() -> None:
    told = start(saved_twice().tell(damaged()).restart(), "w3")
    assert avoided(told) == (2,)


def test_an_older_snapshot_than_was_committed_is_continued_and_the_newer_one_named() -> None:
    told = restored().preempt(victim("w2"), uid="s2")
    told.frozen("s2.w2.1").committed("s2.w2.1", generation=2).killed("s2.w2.1")
    start(told, "w3")
    for _ in range(STALE_ANSWERS):
        told.tell(SnapshotFound("restore.w3", ref(1)))
    assert told.order(Stage).snapshot == ref(1)
    (said,) = [one for one in told.said if isinstance(one, PublishEvent)]
    assert said.severity is Severity.WARNING
    assert said.text.endswith("md/0@2 is not in the store any more, or cannot be read there")


# -- what was committed so long ago that its record is forgotten


def _forgotten(policy: CheckpointPolicy, *, continues: bool = False, committed: SnapshotRef | None = None) -> Told:
    told = saved().hold_is_released().ended().after(4000)
    assert not told.core.registry.checkpoints
    return told.report(Starting(workload("w2"), MD, policy, continues=continues, newest_snapshot=committed))


def test_what_was_committed_long_ago_and_is_gone_goes_by_the_policy() -> None:
    told = _forgotten(FAIL, committed=ref(1)).restart()
    told.report(Starting(workload("w2"), MD, FAIL, newest_snapshot=ref(1))).tell(SnapshotFound("restore.w2"))
    assert told.order(FailWorkload).why == "bio/md/0/main@1 is not in the store any more"
    assert told.tells() == ["RestoreFailed"]


def test_what_was_committed_long_ago_and_is_gone_is_a_cold_start_with_a_word() -> None:
    told = _forgotten(POLICY, committed=ref(1)).tell(SnapshotFound("restore.w2"))
    assert told.order(StartCold).why == "bio/md/0/main@1 is not in the store any more"
    assert told.tells() == ["ColdStart"]


def test_who_was_to_go_on_and_finds_nothing_goes_by_the_policy() -> None:
    told = _forgotten(FAIL, continues=True).tell(SnapshotFound("restore.w2"))
    assert "the store has none of this namespace" in told.order(FailWorkload).why


def test_an_older_snapshot_than_was_committed_long_ago_is_a_warning() -> None:
    told = _forgotten(POLICY, committed=ref(2))
    for _ in range(STALE_ANSWERS):
        assert told.step("restore.w2") == "Waiting"
        told.tell(SnapshotFound("restore.w2", ref(1)))
    (said,) = [one for one in told.said if isinstance(one, PublishEvent)]
    assert said.severity is Severity.WARNING
    assert "md/0@2 is not in the store any more" in said.text


def test_what_was_deleted_while_it_waited_is_not_missed() -> None:
    told = _forgotten(FAIL, committed=ref(1))
    told.report(Starting(workload("w2"), MD, FAIL)).tell(SnapshotFound("restore.w2"))
    assert told.order(StartCold).why is None
