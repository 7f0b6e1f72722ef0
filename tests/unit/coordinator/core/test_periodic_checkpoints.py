"""Periodic checkpoints: no eviction waits for them, and they give way to evictions."""

from __future__ import annotations

from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Thawed
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint
from tests.unit.coordinator.core.core_builders import Told, victim

OTHER, THIRD = Identity("bio", "other"), Identity("bio", "third")


def test_it_runs_on_and_the_next_one_is_taken() -> None:
    core = Told().running().interval_passed()
    assert core.orders() == ["Freeze p1.w1.1"]
    core.frozen("p1.w1.1").committed("p1.w1.1")
    assert core.orders() == ["Thaw p1.w1.1"]
    assert core.tell(Thawed("p1.w1.1")).orders() == ["ApplyRetention p1.w1.1"]
    core.interval_passed(uid="p2").frozen("p2.w1.1").committed("p2.w1.1", generation=2).tell(Thawed("p2.w1.1"))
    assert core.step("p2.w1.1") == "Ready"
    assert core.step("restore.w1") == "Running"


def test_its_start_is_no_event_and_its_commit_is_one() -> None:
    core = Told().running().interval_passed()
    assert core.tells() == []
    assert core.frozen("p1.w1.1").committed("p1.w1.1").tells() == ["CheckpointCommitted"]


def test_an_eviction_of_the_workload_takes_its_place() -> None:
    core = Told().running().interval_passed().frozen("p1.w1.1")
    core.preempt()
    assert core.orders() == ["Abort p1.w1.1"]
    assert core.step("s1.w1.1") == "Waiting"
    assert core.aborted("p1.w1.1").orders() == ["Freeze s1.w1.1"]


def test_an_eviction_of_another_workload_of_its_node_comes_first() -> None:
    core = Told().running().running("w2", OTHER).interval_passed()
    core.preempt(victim("w2", OTHER))
    assert core.orders() == ["Abort p1.w1.1", "Freeze s1.w2.1"]


def test_an_eviction_on_another_node_does_not_disturb_it() -> None:
    core = Told().running().running("w2", OTHER, node="n2").interval_passed()
    core.preempt(victim("w2", OTHER, node="n2"))
    assert core.orders() == ["Freeze s1.w2.1"]
    assert core.step("p1.w1.1") == "Freezing"


def test_it_does_not_begin_while_its_node_saves_for_an_eviction() -> None:
    core = Told().running().running("w2", OTHER).preempt(victim("w2", OTHER))
    core.interval_passed()
    assert core.orders() == []
    assert core.step("p1.w1.1") == "Failed"
    failed = core.saved["p1.w1.1"]
    assert isinstance(failed, Checkpoint)
    assert failed.failure == "an eviction on its node is saved first"


def test_its_whole_gang_gives_way() -> None:
    core = Told().running("w2", OTHER).running("w3", THIRD, node="n3").running(node="n2")
    core.interval_passed(victim("w2", OTHER, gang="g"), victim("w3", THIRD, gang="g", node="n3"))
    core.preempt(victim(node="n3"))
    assert set(core.orders()) == {"Abort p1.w2.1", "Abort p1.w3.1", "Freeze s1.w1.1"}


def test_a_committed_one_stays() -> None:
    core = Told().running().interval_passed().frozen("p1.w1.1").committed("p1.w1.1")
    core.preempt()
    assert core.orders() == []
    assert core.tell(Thawed("p1.w1.1")).orders() == ["ApplyRetention p1.w1.1", "Freeze s1.w1.1"]


def test_a_backup_on_request_does_not_give_way() -> None:
    core = Told().running().preempt(after_commit=AfterCommit.LEAVE_RUNNING, uid="b1")
    core.preempt()
    assert core.orders() == []
    assert core.step("b1.w1.1") == "Freezing"


def saved_and_frozen() -> Told:
    """Its eviction was released, and its scheduler has not deleted it."""
    return Told().running().preempt().frozen().committed().killed(still_frozen=True)


def test_it_does_not_count_on_a_workload_that_is_saved_and_stopped() -> None:
    core = saved_and_frozen().interval_passed()
    failed = core.saved["p1.w1.1"]
    assert isinstance(failed, Checkpoint)
    assert (failed.step, failed.verdict, failed.snapshot) == ("Failed", "NotNeeded", None)
    assert failed.failure == "it is saved as bio/md/0/main@1, and stopped"


def test_a_workload_that_is_not_evicted_after_all_is_thawed_whoever_wanted_snapshots_meanwhile() -> None:
    assert saved_and_frozen().interval_passed().cancel().orders() == ["Thaw s1.w1.1"]
    on_request = saved_and_frozen().preempt(after_commit=AfterCommit.LEAVE_RUNNING, uid="b1")
    assert on_request.step("b1.w1.1") == "Ready"
    assert on_request.cancel().orders() == ["Thaw s1.w1.1"]


def test_a_gang_of_which_one_is_saved_and_stopped_is_not_saved() -> None:
    core = Told().running("w2", OTHER, node="n2").running()
    core.preempt().frozen().committed().killed(still_frozen=True)
    core.interval_passed(victim("w2", OTHER, gang="g", node="n2"), victim(gang="g"))
    assert core.orders() == []
    assert {core.step("p1.w1.1"), core.step("p1.w2.1")} == {"Failed"}


def test_a_restarted_coordinator_goes_on_with_it() -> None:
    core = Told().running().interval_passed().frozen("p1.w1.1").restart()
    assert "Dump p1.w1.1" in core.orders()
