"""The scheduler's decisions, one sentence a case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cedana_sched.local.scheduler.decide import decide
from cedana_sched.local.scheduler.resources import Limits
from cedana_sched.local.scheduler.scheduling_types import ClusterState, Cohort, Decisions, Eviction, QueueingStrategy
from tests.unit.local.scheduler.scheduler_builders import ANY, LOWER, NEVER, NEWER, cohort, group, pending, running

NOW = 1000.0

TWO = cohort(group("bio", 2), group("ml", 2))
FAIR_TWO = cohort(group("bio", 2), group("ml", 2), fair=True)


class Case(msgspec.Struct):
    cohort: Cohort
    pending: list[Any]
    admitted: list[Any] = []
    want_admitted: list[str] = []
    want_preempted: dict[str, str] = {}
    want_unneeded: list[str] = []
    want_waiting: dict[str, str] = {}
    """Part of the reason by job."""


ADMISSION = {
    "a job within nominal quota is admitted": Case(TWO, [pending("a", "bio", 2)], want_admitted=["a"]),
    "a job borrows what the other group does not use": Case(TWO, [pending("a", "bio", 4)], want_admitted=["a"]),
    "borrowing stops at the borrowing limit": Case(
        cohort(group("bio", 2, borrowing_limit=Limits(cpu=1000)), group("ml", 2)),
        [pending("a", "bio", 2), pending("b", "bio", 1, at=101), pending("c", "bio", 1, at=102)],
        want_admitted=["a", "b"],
        want_waiting={"c": "needs 1 cpu, 0 cpus free to its group"},
    ),
    "a group lends no more than its lending limit": Case(
        cohort(group("bio", 2), group("ml", 2, lending_limit=Limits(cpu=1000))),
        [pending("a", "bio", 3), pending("b", "bio", 1, at=101), pending("c", "ml", 1, at=102)],
        want_admitted=["c", "a"],
        want_waiting={"b": "needs 1 cpu"},
    ),
    "what a group keeps to itself is there although the cohort is full": Case(
        cohort(group("bio", 2), group("ml", 2, lending_limit=Limits(cpu=1000))),
        [pending("c", "ml", 1)],
        [running("a", "bio", 3)],
        want_admitted=["c"],
    ),
    "half a cpu is a quantity": Case(
        TWO, [pending("a", "bio", 3.5), pending("b", "bio", 0.5, at=101)], want_admitted=["a", "b"]
    ),
    "higher priority goes first": Case(
        TWO,
        [pending("low", "bio", 4, at=1), pending("high", "bio", 4, priority=5, at=2)],
        want_admitted=["high"],
        want_waiting={"low": "needs 4 cpus"},
    ),
    "among equals the one that was submitted first goes first": Case(
        TWO, [pending("later", "bio", 4, at=2), pending("first", "bio", 4, at=1)], want_admitted=["first"]
    ),
    "who stays within its quota goes before an earlier one that borrows": Case(
        TWO,
        [pending("borrows", "bio", 3, at=1), pending("within", "ml", 2, at=2)],
        want_admitted=["within"],
    ),
    "with fair sharing the group of the smaller share goes first": Case(
        cohort(group("bio", 1), group("ml", 1), group("idle", 4), fair=True),
        [pending("bio2", "bio", 2, at=1), pending("ml2", "ml", 1, at=2)],
        [running("bio1", "bio", 2), running("ml1", "ml", 1)],
        want_admitted=["ml2", "bio2"],
    ),
    "a job that does not fit lets a smaller one of its group pass": Case(
        TWO,
        [pending("big", "bio", 4, at=1), pending("small", "bio", 1, at=2)],
        [running("r", "ml", 2)],
        want_admitted=["small"],
    ),
    "in a StrictFIFO group it does not": Case(
        cohort(group("bio", 2, queueing=QueueingStrategy.STRICT_FIFO), group("ml", 2)),
        [pending("big", "bio", 4, at=1), pending("small", "bio", 1, at=2)],
        [running("r", "ml", 2)],
        want_waiting={"small": "queued behind big"},
    ),
    "memory runs out as cpus do": Case(
        TWO,
        [msgspec.structs.replace(pending("a", "bio", 1), request=pending("x", "bio", 4).request)],
        [running("r", "bio", 3)],
        want_waiting={"a": "of memory"},
    ),
    "a group that is gone from the file still counts with what it uses": Case(
        cohort(group("bio", 2), group("ml", 2)),
        [pending("a", "bio", 2)],
        [running("r", "old", 3)],
        want_waiting={"a": "1 cpu free"},
    ),
}

PREEMPTION = {
    "a group takes back what it lent, from the newest borrower": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("old", "bio", 2, at=1), running("new", "bio", 2, at=2)],
        want_preempted={"new": "InCohortReclamation"},
    ),
    "of the borrowers the one of lower priority goes, however old": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("old", "bio", 2, at=1), running("new", "bio", 2, at=2, priority=1)],
        want_preempted={"old": "InCohortReclamation"},
    ),
    "victims that turn out needless are spared": Case(
        TWO,
        [pending("b", "ml", 2)],
        [running("one", "bio", 1, at=3), running("two", "bio", 2, at=2), running("three", "bio", 1, at=1)],
        want_preempted={"two": "InCohortReclamation"},
    ),
    "reclaimWithinCohort LowerPriority spares a borrower of equal priority": Case(
        cohort(group("bio", 2), group("ml", 2, reclaim=LOWER)),
        [pending("b", "ml", 1)],
        [running("r", "bio", 4)],
        want_waiting={"b": "no job can be preempted"},
    ),
    "reclaimWithinCohort Never spares every borrower, and says so": Case(
        cohort(group("bio", 2), group("ml", 2, reclaim=NEVER, within_group=NEVER)),
        [pending("b", "ml", 1)],
        [running("r", "bio", 4)],
        want_waiting={"b": "reclaimWithinCohort and withinClusterQueue are Never"},
    ),
    "a group that would borrow itself reclaims nothing": Case(
        TWO,
        [pending("b", "ml", 1, priority=9)],
        [running("r", "bio", 2), running("m", "ml", 2, priority=9)],
        want_waiting={"b": "no job can be preempted"},
    ),
    "with borrowWithinCohort it does, from lower priority": Case(
        cohort(group("bio", 1), group("ml", 1, borrow_while_preempting=True), group("idle", 2)),
        [pending("b", "ml", 1, priority=5)],
        [running("r", "bio", 3), running("m", "ml", 1, priority=9)],
        want_preempted={"r": "InCohortReclaimWhileBorrowing"},
    ),
    "and spares what is above maxPriorityThreshold": Case(
        cohort(
            group("bio", 1), group("ml", 1, borrow_while_preempting=True, max_priority_threshold=2), group("idle", 2)
        ),
        [pending("b", "ml", 1, priority=5)],
        [running("r", "bio", 3, priority=3), running("m", "ml", 1, priority=9)],
        want_waiting={"b": "no job can be preempted"},
    ),
    "within a group lower priority makes place": Case(
        TWO,
        [pending("b", "bio", 1, priority=1)],
        [running("a", "bio", 2), running("m", "ml", 2)],
        want_preempted={"a": "InClusterQueue"},
    ),
    "within a group equal priority does not": Case(
        TWO,
        [pending("b", "bio", 1)],
        [running("a", "bio", 2), running("m", "ml", 2)],
        want_waiting={"b": "needs 1 cpu"},
    ),
    "unless it is newer and the policy is LowerOrNewerEqualPriority": Case(
        cohort(group("bio", 2, within_group=NEWER), group("ml", 2)),
        [pending("b", "bio", 1, at=5)],
        [running("older", "bio", 1, at=4), running("newer", "bio", 1, at=6), running("m", "ml", 2)],
        want_preempted={"newer": "InClusterQueue"},
    ),
    "other groups' borrowers go before the group's own jobs": Case(
        TWO,
        [pending("b", "ml", 1, priority=5)],
        [running("own", "ml", 1), running("borrower", "bio", 3, priority=4)],
        want_preempted={"borrower": "InCohortReclamation"},
    ),
    "a job that is still starting is left alone": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("r", "bio", 4, preemptible=False)],
        want_waiting={"b": "no job can be preempted"},
    ),
    "a job that asked to be left alone is, for that time": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("r", "bio", 4, protected_until=NOW + 1)],
        want_waiting={"b": "no job can be preempted"},
    ),
    "and afterwards it is a victim like any other": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("r", "bio", 4, protected_until=NOW)],
        want_preempted={"r": "InCohortReclamation"},
    ),
}

HELD = {
    "while its victim is held the preemptor waits and takes no other": Case(
        TWO,
        [pending("b", "ml", 2)],
        [running("v", "bio", 2, at=2, going_for="b"), running("r", "bio", 2, at=1)],
        want_waiting={"b": "waits until v is gone"},
    ),
    "a place that one victim left is kept until the other is gone too": Case(
        TWO,
        [pending("b", "ml", 2, at=100), pending("thief", "bio", 1, at=1)],
        [running("v", "bio", 1, at=2, going_for="b"), running("r", "bio", 2, at=1)],
        want_waiting={"b": "waits until v is gone", "thief": "needs 1 cpu"},
    ),
    "what nobody waits for is given away meanwhile": Case(
        TWO,
        [pending("b", "ml", 2, at=100), pending("small", "bio", 1, at=101)],
        [running("v", "bio", 2, at=2, going_for="b"), running("r", "bio", 1, at=1)],
        want_admitted=["small"],
        want_waiting={"b": "waits until v is gone"},
    ),
    "a preemption whose preemptor is gone is called off": Case(
        TWO, [], [running("v", "bio", 4, going_for="cancelled")], want_unneeded=["v"]
    ),
    "a preemption whose preemptor got its place elsewhere is called off": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("v", "bio", 1, going_for="b")],
        want_admitted=["b"],
        want_unneeded=["v"],
    ),
    "one that cannot be called off any more is waited for": Case(
        TWO,
        [pending("c", "ml", 4)],
        [msgspec.structs.replace(running("v", "bio", 4), eviction=Eviction("cancelled", revocable=False))],
        want_waiting={"c": "waits until v is gone"},
    ),
    "a preemptor that lost a victim to protection takes another": Case(
        TWO,
        [pending("b", "ml", 1)],
        [running("kept", "bio", 2, at=3, protected_until=NOW + 9), running("r", "bio", 2, at=1)],
        want_preempted={"r": "InCohortReclamation"},
    ),
}

SHARES = {
    "fair share gives back what is borrowed to a group within its quota": Case(
        FAIR_TWO,
        [pending("b", "ml", 2)],
        [running("a1", "bio", 2, at=1), running("a2", "bio", 2, at=2)],
        want_preempted={"a2": "InCohortReclamation"},
    ),
    "two groups that borrow the same from a third do not preempt each other": Case(
        cohort(group("a", 0), group("b", 0), group("idle", 4), fair=True),
        [pending("new", "b", 1)],
        [running("a1", "a", 1, at=1), running("a2", "a", 1, at=2), running("b1", "b", 2, at=1)],
        want_waiting={"new": "no job can be preempted"},
    ),
    "a group that borrows more gives until it keeps as much as it gives": Case(
        cohort(group("a", 0), group("b", 0), group("idle", 4), fair=True),
        [pending("new", "b", 2)],
        [running(f"a{i}", "a", 1, at=i) for i in range(1, 5)],
        want_preempted={"a3": "InCohortFairSharing", "a4": "InCohortFairSharing"},
    ),
    "a weight of three may borrow three times as much": Case(
        cohort(group("a", 0, weight=3.0), group("b", 0), group("idle", 4), fair=True),
        [pending("new", "b", 2)],
        [running(f"a{i}", "a", 1, at=i) for i in range(1, 5)],
        want_waiting={"new": "no job can be preempted"},
    ),
    "a group of weight 0 gives all that it borrows": Case(
        cohort(group("a", 0, weight=0.0), group("b", 0), group("idle", 2), fair=True),
        [pending("new", "b", 2)],
        [running("a1", "a", 1, at=1), running("a2", "a", 1, at=2)],
        want_preempted={"a1": "InCohortFairSharing", "a2": "InCohortFairSharing"},
    ),
    "it is the first to give, though another one borrows more": Case(
        cohort(group("a", 0, weight=0.0), group("b", 0), group("c", 1), group("idle", 3), fair=True),
        [pending("new", "c", 1)],
        [running("a1", "a", 1, at=1), running("b1", "b", 3, at=9)],
        want_preempted={"a1": "InCohortReclamation"},
    ),
    "and borrows from those who are idle as any other": Case(
        cohort(group("a", 0, weight=0.0), group("idle", 2), fair=True), [pending("new", "a", 2)], want_admitted=["new"]
    ),
    "of two borrowers the greedier gives": Case(
        cohort(group("a", 0), group("b", 0), group("c", 0), group("idle", 5), fair=True),
        [pending("new", "c", 1)],
        [
            running("a1", "a", 1, at=9),
            running("a2", "a", 1, at=8),
            *(running(f"b{i}", "b", 1, at=i) for i in (1, 2, 3)),
        ],
        want_preempted={"b3": "InCohortFairSharing"},
    ),
    "LessThanInitialShare lets one large job of the greedier group go": Case(
        cohort(group("a", 0), group("b", 0), group("idle", 4), fair=True),
        [pending("new", "b", 2)],
        [running("a1", "a", 4)],
        want_preempted={"a1": "InCohortFairSharing"},
    ),
}

CASES = ADMISSION | PREEMPTION | HELD | SHARES


@pytest.mark.parametrize("sentence", CASES)
def test_decision(sentence: str) -> None:
    case = CASES[sentence]

    decisions = decide(ClusterState(case.cohort, tuple(case.pending), tuple(case.admitted)), NOW)

    assert list(decisions.admissions) == case.want_admitted
    assert {p.victim: p.reason.value for p in decisions.preemptions} == case.want_preempted
    assert list(decisions.unneeded) == case.want_unneeded
    for uid, words in case.want_waiting.items():
        assert words in decisions.waiting[uid]


def test_a_job_that_can_never_fit_is_named_with_what_its_group_can_have() -> None:
    decisions = decide(ClusterState(TWO, (pending("a", "bio", 5), pending("b", "gone", 1))), NOW)

    assert decisions.unschedulable == {
        "a": "it requests 5 cpus, and group 'bio' can have 4 cpus at most, borrowing included",
        "b": "there is no group 'gone'",
    }
    assert decisions.admissions == ()


def test_the_end_of_a_protection_wakes_the_scheduler() -> None:
    admitted = (running("r", "bio", 4, protected_until=NOW + 7),)

    waiting = decide(ClusterState(TWO, (pending("b", "ml", 1),), admitted), NOW)
    nobody_waits = decide(ClusterState(TWO, (), admitted), NOW)

    assert waiting.wake_at == NOW + 7
    assert nobody_waits == Decisions()


def test_an_unlimited_group_may_take_all_of_an_idle_cohort() -> None:
    decisions = decide(ClusterState(cohort(group("a", 1, reclaim=ANY), group("b", 3)), (pending("j", "a", 4),)), NOW)

    assert decisions.admissions == ("j",)
