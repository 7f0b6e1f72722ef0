"""What a turn costs grows with what changes: work is counted in executed byte codes, never in seconds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import pytest

from cedana_sched.adapter.contract import Ended, Preempted, Report, Starting
from cedana_sched.coordinator.core import Core, Event, Instruction, NodeLost, Persist, ReleaseDone, Reported, Send, Tick
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    Committed,
    Dump,
    FindSnapshot,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    RestoreSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
    StartCold,
    StartedCold,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Victim, WorkloadRef
from cedana_sched.model.records import Record, Transfer

POLICY = CheckpointPolicy(deadline_seconds=60)
SLACK = 1.5
"""What is linear costs at most this much more for each one; what is quadratic ten times, at ten times the size."""
FEW = 100

ANSWERS: dict[type[Order], Callable[[Any], Event]] = {
    Freeze: lambda order: Frozen(order.checkpoint_uid),
    Dump: lambda order: Committed(order.checkpoint_uid, SnapshotRef(order.identity, 1), Transfer()),
    Kill: lambda order: Killed(order.checkpoint_uid, still_frozen=not order.insist),
    Abort: lambda order: Aborted(order.checkpoint_uid),
    FindSnapshot: lambda order: SnapshotFound(order.restore_uid, order.requested_snapshot),
    Stage: lambda order: Staged(order.restore_uid),
    RestoreSnapshot: lambda order: RestoreSucceeded(order.restore_uid),
    StartCold: lambda order: StartedCold(order.restore_uid),
}


class TooMuchWorkError(AssertionError):
    """The budget is spent."""


class Work:
    """Counts the byte codes that run inside its block."""

    def __init__(self, budget: float = float("inf")) -> None:
        self.done = 0
        self._budget = budget

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._count

    def _count(self, frame: FrameType, event: str, argument: object) -> Any:
        del frame, event, argument
        self.done += 1
        if self.done > self._budget:
            sys.settrace(None)
            raise TooMuchWorkError(f"more than {self._budget:.0f} operations")
        return self._count


class Storm:
    """A core and everybody who answers it."""

    def __init__(self) -> None:
        self.core = Core()
        self.now = 1000.0
        self.sent: list[Order] = []
        self.saved: dict[str, Record] = {}

    def tell(self, *events: Event) -> None:
        for event in events:
            self.take(self.core.handle(event, self.now))

    def take(self, instructions: tuple[Instruction, ...]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self.sent.append(instruction.order)
            elif isinstance(instruction, Persist):
                self.saved.update({record.uid: record for record in instruction.records})
                for record in instruction.forget:
                    del self.saved[record.uid]

    def report(self, *reports: Report) -> None:
        self.tell(*(Reported("kueue", report) for report in reports))

    def answer(self, *kinds: type[Order]) -> None:
        """All orders of these kinds that were given until now."""
        due = [order for order in self.sent if isinstance(order, kinds)]
        self.sent = [order for order in self.sent if not isinstance(order, kinds)]
        self.tell(*(ANSWERS[type(order)](order) for order in due))

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())


def workload(number: int) -> WorkloadRef:
    return WorkloadRef(f"p{number}", "bio", f"w{number}", f"n{number % 20}")


def identity(number: int) -> Identity:
    return Identity("bio", f"job{number}")


def signals(size: int, members: int, release_group: str | None) -> list[Report]:
    """One for every `members` victims, each of them a gang."""
    return [
        Preempted(
            Signal(
                f"s{first}",
                "kueue",
                tuple(
                    Victim(workload(n), identity(n), POLICY, f"g{first}" if members > 1 else None)
                    for n in range(first, first + members)
                ),
                "InCohortReclamation",
                1000.0,
                release_group=release_group,
            )
        )
        for first in range(0, size, members)
    ]


def saved(size: int, members: int, release_group: str | None) -> Storm:
    storm = Storm()
    storm.report(*signals(size, members, release_group))
    for kind in (Freeze, Dump, Kill):
        storm.answer(kind)
    return storm


def answered(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """Everything goes well: signals, three answers each, releases, ends."""

    def act(storm: Storm) -> None:
        storm.report(*signals(size, members, release_group))
        for kind in (Freeze, Dump, Kill):
            storm.answer(kind)
        storm.tell(*(ReleaseDone(f"s{n}") for n in range(0, size, members)))
        storm.report(*(Ended(f"p{n}", "deleted") for n in range(size)))

    return Storm(), act


def unanswered(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """No dump ends before the deadline, which comes for all in one turn."""
    storm = Storm()
    storm.report(*signals(size, members, release_group))
    storm.answer(Freeze)
    return storm, lambda storm: storm.later(61)


def undeleted(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """All are released, and nobody deletes them."""
    storm = saved(size, members, release_group)

    def act(storm: Storm) -> None:
        storm.tell(*(ReleaseDone(f"s{n}") for n in range(0, size, members)))
        storm.later(61)
        storm.answer(Kill)

    return storm, act


def forgotten(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """All is long over."""
    storm = saved(size, members, release_group)
    storm.tell(*(ReleaseDone(f"s{n}") for n in range(0, size, members)))
    storm.report(*(Ended(f"p{n}", "deleted") for n in range(size)))

    def act(storm: Storm) -> None:
        for _ in range(4):
            storm.later(3601)
        assert storm.core.records() == ()

    return storm, act


def returning(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """Everybody comes back by the name of its snapshot, and is preempted while it does."""
    del release_group
    storm = Storm()

    def act(storm: Storm) -> None:
        wanted = [SnapshotRef(identity(n), 1) for n in range(size)]
        storm.report(*(Starting(workload(n), identity(n), POLICY, wanted[n]) for n in range(size)))
        storm.report(*signals(size, members, None))
        for kind in (FindSnapshot, Stage, RestoreSnapshot, Freeze, Dump, Kill):
            storm.answer(kind)
        assert not storm.sent or all(type(order).__name__ == "ApplyRetention" for order in storm.sent)

    return storm, act


def recovered(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """A coordinator begins in the middle of it."""
    storm = Storm()
    storm.report(*signals(size, members, release_group))
    storm.answer(Freeze)

    def act(storm: Storm) -> None:
        storm.core, instructions = Core.recover(storm.saved.values(), storm.now)
        storm.take(instructions)

    return storm, act


def nodes_lost(size: int, members: int, release_group: str | None) -> tuple[Storm, Callable[[Storm], None]]:
    """One node after the other goes, in the middle of it."""
    del members
    storm = Storm()
    storm.report(*signals(size, 1, release_group))
    storm.answer(Freeze)
    return storm, lambda storm: storm.tell(*(NodeLost(f"n{n}") for n in range(20)))


Scene = Callable[[int, int, str | None], tuple[Storm, Callable[[Storm], None]]]
SCENES: dict[Scene, tuple[int, ...]] = {
    answered: (400, 1000),
    unanswered: (400, 1000),
    undeleted: (400,),
    forgotten: (400,),
    returning: (400,),
    recovered: (400,),
    nodes_lost: (400,),
}
"""And at which sizes it is compared with the few."""
SHAPES = {
    "holds of one preemptor": (1, "one preemptor"),
    "gangs of ten": (10, "one preemptor"),
    "one gang": (0, None),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_work_grows_no_faster_than_the_storm(scene: Scene, shape: str) -> None:
    members, release_group = SHAPES[shape]
    spent: Counter[int] = Counter()
    for size in (FEW, *SCENES[scene]):
        storm, act = scene(size, members or size, release_group)
        budget = spent[FEW] / FEW * size * SLACK if spent[FEW] else float("inf")
        with Work(budget) as work:
            act(storm)
        spent[size] = work.done
    assert spent[FEW] > FEW, "nothing was done"
