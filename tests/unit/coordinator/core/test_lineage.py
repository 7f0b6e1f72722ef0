"""A dump is told where its work comes from, and whoever looks at it which work nothing newer has."""

from __future__ import annotations

from cedana_sched.adapter.contract import Starting
from cedana_sched.coordinator.core import PublishEvent, Severity
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.orders import Committed, Dump, RestoreSucceeded, SnapshotFound, Staged, StageFailed, StartedCold
from cedana_sched.model.records import Transfer
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, ref, victim, workload


def back(uid: str = "w1", generation: int = 3, incarnation: int = 0) -> Told:
    restore = f"restore.{uid}" + (f".{incarnation}" if incarnation else "")
    told = Told().report(Starting(workload(uid), MD, POLICY, incarnation=incarnation))
    return told.tell(SnapshotFound(restore, ref(generation)), Staged(restore), RestoreSucceeded(restore))


def lineage(told: Told) -> Lineage | None:
    return told.preempt().frozen().order(Dump).lineage


def test_who_came_back_continues_its_snapshot() -> None:
    assert lineage(back()) == Lineage("restore.w1", ref(3))


def test_who_started_cold_continues_nothing() -> None:
    told = Told().report(Starting(workload("w1"), MD, POLICY)).tell(StageFailed("restore.w1", "away", True))
    told.after(POLICY.restore_deadline_seconds + 1).tell(StartedCold("restore.w1"))
    assert lineage(told) == Lineage("restore.w1")


def test_who_started_without_a_word_continues_nothing() -> None:
    assert lineage(Told()) == Lineage("w1")


def test_who_begins_again_is_another_run() -> None:
    assert lineage(back(incarnation=2)) == Lineage("restore.w1.2", ref(3))


def test_a_dump_that_is_told_again_is_told_the_same() -> None:
    told = back()
    assert lineage(told) == told.restart().order(Dump).lineage == Lineage("restore.w1", ref(3))


def test_the_work_that_nothing_newer_has_is_named_with_the_way_back() -> None:
    told = back().preempt(victim()).frozen()
    told.tell(Committed("s1.w1.1", ref(5), Transfer(), leaves=ref(4)))
    (said,) = [one for one in told.said if isinstance(one, PublishEvent) and one.kind == "SnapshotDiverged"]
    assert (said.severity, said.workload) == (Severity.WARNING, workload("w1"))
    assert said.text == (
        "Checkpoint md/0@5 does not continue md/0@4, whose work nothing newer has: it is kept beside those of the"
        " policy, until it is deleted. To restore it, delete the newer ones, or select it by its name (of a pod: the"
        " annotation sched.cedana.ai/restore-from: md/0@4)"
    )
    told.tell(Committed("s1.w1.1", ref(5), Transfer(), leaves=ref(4)))
    assert "SnapshotDiverged" not in told.tells(), "not twice"
