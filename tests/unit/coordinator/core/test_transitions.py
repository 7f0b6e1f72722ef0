"""The tables themselves: complete, reachable, without dead ends, and loud about what they do not know."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cedana_sched.adapter.contract import Report
from cedana_sched.coordinator.core import Core, Event, Tick, Timing
from cedana_sched.coordinator.core.transitions import CHECKPOINT, HOLD, LATE, RESTORE, Cause, mermaid, next_step_of
from cedana_sched.coordinator.core.turn import RecordTimers
from cedana_sched.model.errors import IllegalTransitionError
from cedana_sched.model.orders import Killed, Outcome, RemovalFailed, RetentionApplied, Staged
from cedana_sched.model.records import CheckpointStep, HoldStep, Record, RestoreStep
from tests.unit.coordinator.core.core_builders import Told

TABLES: list[Any] = [
    pytest.param(CHECKPOINT, CheckpointStep, {"Waiting"}, {"Ready", "Failed"}, id="checkpoint"),
    pytest.param(HOLD, HoldStep, {"Holding"}, {"Released"}, id="hold"),
    pytest.param(RESTORE, RestoreStep, {"Waiting"}, {"Ended", "Failed"}, id="restore"),
]

CHECKPOINT_CASES = [
    ("Waiting", Cause.BEGIN, "Freezing"),
    ("Waiting", Cause.JOIN, "Ready"),
    ("Waiting", Cause.DEADLINE, "Failed"),
    ("Freezing", Cause.FROZEN, "Frozen"),
    ("Freezing", Cause.CHECKPOINT_FAILED, "Aborting"),
    ("Freezing", Cause.NODE_LOST, "Failed"),
    ("Frozen", Cause.ALL_FROZEN, "Dumping"),
    ("Frozen", Cause.SET_FAILED, "Aborting"),
    ("Dumping", Cause.COMMITTED, "Committed"),
    ("Dumping", Cause.CANCELLED, "Aborting"),
    ("Dumping", Cause.DEADLINE, "Aborting"),
    ("Dumping", Cause.ENDED, "Aborting"),
    ("Dumping", Cause.FROZEN, LATE),
    ("Committed", Cause.KILL_ALL, "Killing"),
    ("Committed", Cause.THAW_ALL, "Thawing"),
    ("Committed", Cause.SET_FAILED, "Aborting"),
    ("Committed", Cause.ENDED, "Committed"),
    ("Committed", Cause.NODE_LOST, "Committed"),
    ("Killing", Cause.KILLED, "Ready"),
    ("Killing", Cause.ENDED, "Ready"),
    ("Killing", Cause.NODE_LOST, "Ready"),
    ("Killing", Cause.UNCONFIRMED, "Ready"),
    ("Killing", Cause.CHECKPOINT_FAILED, LATE),
    ("Thawing", Cause.THAWED, "Ready"),
    ("Aborting", Cause.ABORTED, "Failed"),
    ("Aborting", Cause.COMMITTED, LATE),
    ("Aborting", Cause.UNCONFIRMED, "Failed"),
    ("Ready", Cause.KILLED, LATE),
    ("Failed", Cause.ABORTED, LATE),
    ("Failed", Cause.COMMITTED, LATE),
]

ILLEGAL = [
    (CHECKPOINT, CheckpointStep.WAITING, Cause.FROZEN),
    (CHECKPOINT, CheckpointStep.FREEZING, Cause.COMMITTED),
    (CHECKPOINT, CheckpointStep.DUMPING, Cause.KILLED),
    (CHECKPOINT, CheckpointStep.DUMPING, Cause.KILL_ALL),
    (CHECKPOINT, CheckpointStep.KILLING, Cause.ABORTED),
    (CHECKPOINT, CheckpointStep.KILLING, Cause.DEADLINE),
    (CHECKPOINT, CheckpointStep.KILLING, Cause.CANCELLED),
    (CHECKPOINT, CheckpointStep.ABORTING, Cause.KILL_ALL),
    (CHECKPOINT, CheckpointStep.READY, Cause.ABORTED),
    (CHECKPOINT, CheckpointStep.FAILED, Cause.KILLED),
    (HOLD, HoldStep.HOLDING, Cause.RELEASE_DONE),
    (HOLD, HoldStep.RELEASED, Cause.DEADLINE),
    (RESTORE, RestoreStep.WAITING, Cause.RESTORE_SUCCEEDED),
    (RESTORE, RestoreStep.STAGING, Cause.RESTORE_SUCCEEDED),
    (RESTORE, RestoreStep.RUNNING, Cause.START_COLD),
    (RESTORE, RestoreStep.ENDED, Cause.CHOSEN),
]


@pytest.mark.parametrize(("step", "cause", "following"), CHECKPOINT_CASES)
def test_a_checkpoint_steps(step: str, cause: Cause, following: str | None) -> None:
    assert next_step_of(CHECKPOINT, CheckpointStep(step), cause, "c", ()) == following


@pytest.mark.parametrize(("table", "step", "cause"), ILLEGAL)
def test_what_the_table_does_not_know_raises(table: Any, step: Any, cause: Cause) -> None:
    with pytest.raises(IllegalTransitionError, match=f"x is {step} and cannot take {cause.name}") as caught:
        next_step_of(table, step, cause, "x", ("1.0 born", "2.0 grew up"))
    assert caught.value.evidence == ("1.0 born", "2.0 grew up")


@pytest.mark.parametrize(("table", "steps", "first", "last"), TABLES)
def test_every_step_is_reached_and_left(table: Any, steps: Any, first: set[str], last: set[str]) -> None:
    moves = {(step, following) for (step, _), following in table.items() if following not in {LATE, step}}
    reached = set(first)
    while more := {b for a, b in moves if a in reached} - reached:
        reached |= more
    assert reached == set(steps)
    assert {a for a, _ in moves} >= set(steps) - last


@pytest.mark.parametrize(("table", "steps", "first", "last"), TABLES)
def test_the_diagram_shows_every_step(table: Any, steps: Any, first: set[str], last: set[str]) -> None:
    diagram = mermaid(table)
    assert diagram.startswith("stateDiagram-v2\n")
    assert all(str(step) in diagram for step in steps)
    assert all(line.count(":") == 1 for line in diagram.splitlines()[1:])


def test_the_machine_says_which_record_and_tells_its_history() -> None:
    told = Told().running().preempt()
    with pytest.raises(IllegalTransitionError, match=r"s1\.w1\.1 is Freezing and cannot take KILLED") as caught:
        told.core.handle(Killed("s1.w1.1"), told.now)
    assert [line.split(" ", 1)[1] for line in caught.value.evidence] == [
        "Waiting: signal of kueue, InCohortReclamation",
        "Waiting -> Freezing: nothing is in the way",
    ]


def test_a_refused_event_takes_nothing_with_it() -> None:
    """What its time made due is handed out with the next event."""
    told = Told().running().preempt().frozen()
    told.now += 60
    with pytest.raises(IllegalTransitionError):
        told.core.handle(Killed("s1.w1.1"), told.now)
    assert told.tell().orders() == []
    assert told.tell(Tick()).orders() == ["Abort s1.w1.1"]
    assert told.verdicts() == {"w1": "Evict"}


def test_answers_for_what_is_forgotten_are_dropped() -> None:
    assert Told().tell(Staged("restore.w1"), Killed("s1.w1.1")).said == []


def test_every_event_report_and_answer_has_its_rule() -> None:
    core = Core()
    assert set(get_args(Event)) == core._handlers.keys()
    assert set(get_args(Report)) == core._reports.keys()
    without = {RetentionApplied, RemovalFailed}
    assert set(get_args(Outcome)) - without == core._checkpoints._answers.keys() | core._restores._answers.keys()
    assert set(get_args(Record)) == core._rules.keys() == core.registry._kinds.keys()


def test_time_runs_backwards_only_when_the_clock_was_wrong() -> None:
    core = Core()
    core.handle(Tick(), 100.0)
    core.handle(Tick(), 75.0)
    assert core.now == 100.0
    core.handle(Tick(), 50.0)
    assert core.now == 50.0


def test_deadlines_come_earliest_first_and_only_the_latest_of_each() -> None:
    deadlines = RecordTimers()
    deadlines.set("a", 5)
    deadlines.set("b", 3)
    deadlines.set("a", 1)
    deadlines.set("c", 2)
    deadlines.set("c", None)
    assert deadlines.next_due_at() == 1
    assert deadlines.pop_due(2) == ["a"]
    assert deadlines.pop_due(2) == []
    assert deadlines.next_due_at() == 3


def test_pauses_double_up_to_a_bound() -> None:
    timing = Timing(retry=1, retry_most=10)
    assert [timing.retry_backoff(attempt) for attempt in (1, 2, 3, 4, 5, 500)] == [1, 2, 4, 8, 10, 10]
    assert [timing.retry_backoff_within(attempt, 5) for attempt in (1, 2, 3, 500)] == [1, 2, 2.5, 2.5]
    assert [timing.retry_backoff_within(4, seconds_left) for seconds_left in (2, 1.9, 0, -1)] == [1, None, None, None]
