"""The deadline of a restore: what it says, who is in the way, and what puts it off."""

from __future__ import annotations

from cedana_sched.model.orders import (
    RestoreSucceeded,
    SnapshotFound,
    Staged,
    StageFailed,
    StageProgress,
    StartCold,
)
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS, CheckpointPolicy
from tests.unit.coordinator.core.core_builders import Told, ref, victim
from tests.unit.coordinator.core.restore_stories import restore, saved, start


def test_the_deadline_starts_cold_and_says_why() -> None:
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1))).after(90)
    assert told.order(StartCold).why == "not restored within 90 s"


def test_the_deadline_names_who_is_in_the_way() -> None:
    told = start(Told().running()).after(90)
    assert told.order(StartCold).why == "not restored within 90 s, because name-of-w1 still runs as bio/md/0/main"


def test_time_spent_waiting_for_a_checkpoint_in_flight_does_not_count() -> None:
    slow = CheckpointPolicy(deadline_seconds=600)
    told = start(Told().running().preempt(victim(policy=slow)).frozen())
    assert "StartCold restore.w2" not in told.after(120).orders()
    told.committed().killed()
    assert "FindSnapshot restore.w2" in told.orders()


def test_a_deadline_while_the_node_continues_it_keeps_the_claim() -> None:
    """The node may have continued it already: nobody else may, until it says."""
    told = start(saved()).tell(SnapshotFound("restore.w2", ref(1)), Staged("restore.w2")).after(90)
    assert told.orders()[-1] == "StartCold restore.w2"
    assert restore(told).snapshot == ref(1)
    told.tell(RestoreSucceeded("restore.w2"))
    assert (told.step("restore.w2"), restore(told).cold) == ("Running", False)


# -- progress, and a store that is away


def staging() -> Told:
    return start(saved()).tell(SnapshotFound("restore.w2", ref(1)))


def test_a_restore_that_makes_progress_is_not_cut_off() -> None:
    told = staging()
    for minutes in range(1, 11):
        told.after(60).tell(StageProgress("restore.w2", minutes << 30))
        assert told.step("restore.w2") == "Staging", "it was cut off although its bytes come"
    told.tell(Staged("restore.w2"), RestoreSucceeded("restore.w2"))
    assert (told.step("restore.w2"), restore(told).cold) == ("Running", False)


def test_progress_does_not_put_the_deadline_off_for_ever() -> None:
    policy = CheckpointPolicy(restore_deadline_seconds=86_400)
    told = start(saved(), policy=policy).tell(SnapshotFound("restore.w2", ref(1)))
    for number in range(1, 4):
        told.after(57_000).tell(StageProgress("restore.w2", number))
        assert told.step("restore.w2") == "Staging"
    assert restore(told).deadline == restore(told).created_at + LONGEST_RECORD_SECONDS
    told.after(LONGEST_RECORD_SECONDS - 3 * 57_000)
    assert told.step("restore.w2") == "StartingCold"


def test_a_restore_without_progress_is_cut_off() -> None:
    told = staging().after(60).tell(StageProgress("restore.w2", 1 << 30))
    for _ in range(9):
        told.after(10).tell(StageProgress("restore.w2", 1 << 30))  # the same bytes, again and again
    assert told.step("restore.w2") == "StartingCold"


def test_progress_outlives_the_coordinator() -> None:
    told = staging().after(80).tell(StageProgress("restore.w2", 1 << 30)).restart()
    assert told.after(80).step("restore.w2") == "Staging"


def test_a_store_that_is_away_is_asked_again_and_its_snapshot_continued() -> None:
    told = start(saved()).tell(StageFailed("restore.w2", "the store is away", retryable=True))
    assert told.tells() == ["RestoreDelayed"]
    told.after(2)
    assert told.orders() == ["FindSnapshot restore.w2"]
    assert told.tell(StageFailed("restore.w2", "the store is away", retryable=True)).tells() == []
    told.after(4).tell(
        SnapshotFound("restore.w2", ref(1)), StageFailed("restore.w2", "the store is away", retryable=True)
    )
    assert told.step("restore.w2") == "Staging"
    told.after(10).tell(Staged("restore.w2"), RestoreSucceeded("restore.w2"))
    assert restore(told).cold is False


def test_a_store_that_stays_away_is_named_when_the_policy_takes_over() -> None:
    told = start(saved()).tell(StageFailed("restore.w2", "the store is away", retryable=True)).after(90)
    assert told.order(StartCold).why == "not restored within 90 s: the store is away"
