"""What is frozen past its deadline, and hears of no order any more, is thawed, and its turn given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.agent import deadline_thaws
from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed, CaptureReport, CaptureRequest
from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model.errors import SnapshotError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    CheckpointFailed,
    Committed,
    Dump,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    Outcome,
    Thaw,
    Thawed,
)
from cedana_sched.model.policy import Compression
from cedana_sched.model.records import Transfer
from cedana_sched.snapshot import freezer
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime, agent_of

MD = Identity("default", "md")
SOON = 0.05
LATER = 60.0


class Captures:
    """Yields what it is told to, and can be kept from ending."""

    def __init__(self) -> None:
        self.reports: Sequence[CaptureReport] = ()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.begun = asyncio.Event()

    async def wait_for_earlier_captures(self) -> None: ...

    async def stop_other_captures(self, uid: str, running: RunningWorkload | None) -> None: ...

    async def stop(self, uid: str, running: RunningWorkload | None) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def run(self, request: CaptureRequest) -> AsyncIterator[CaptureReport]:
        self.begun.set()
        await self.goes_on.wait()
        for report in self.reports:
            yield report


class Node:
    """An agent, its one workload, and what is thawed there without an order."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        (folder / "store").mkdir()
        self.runtime = FakeRuntime(folder)
        self.agent: NodeAgent = agent_of(self.runtime, folder, folder / "store")
        self.captures = Captures()
        self.agent._captures = cast("Any", self.captures)
        self.thawed = asyncio.Event()
        loop, thaw = asyncio.get_running_loop(), freezer.thaw_together

        def thawing(*given: Any) -> None:
            thaw(*given)
            loop.call_soon_threadsafe(self.thawed.set)

        patch.setattr(freezer, "thaw_together", thawing)
        patch.setattr(deadline_thaws, "MARGIN_SECONDS", 0.01)

    async def perform(self, order: Order) -> Outcome:
        return [outcome async for outcome in self.agent.perform(order)][-1]

    async def freeze(self, timeout_seconds: float | None = SOON, *, in_gang: bool = False) -> None:
        assert await self.perform(Freeze("c1", WORKLOAD, in_gang, timeout_seconds)) == Frozen("c1")

    async def dump(self, *, runs_on: bool = False) -> Outcome:
        dump = Dump("c1", WORKLOAD, MD, Compression.ZSTD, "why", "kueue", SOON, runs_on=runs_on)
        return await self.perform(dump)

    def will_thaw(self) -> bool:
        """Whether it is to be thawed without an order."""
        return bool(self.agent._thaws._pending)

    async def stays_frozen(self) -> bool:
        """Whether nothing thaws it long after its deadline."""
        try:
            await asyncio.wait_for(self.thawed.wait(), 10 * SOON)
        except TimeoutError:
            return self.runtime.state == "FROZEN"
        return False


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    node = Node(tmp_path, monkeypatch)
    yield node
    await node.agent.__aexit__(None, None, None)


async def test_who_is_frozen_past_its_deadline_runs_on_and_gives_its_turn_back(node: Node) -> None:
    await node.freeze()
    await asyncio.wait_for(node.thawed.wait(), 60)
    assert node.runtime.state == "THAWED"
    assert not node.agent._budget._running


async def test_nothing_is_frozen_or_dumped_for_that_checkpoint_afterwards(node: Node) -> None:
    await node.freeze()
    await asyncio.wait_for(node.thawed.wait(), 60)
    node.captures.reports = (CaptureCommitted(SnapshotRef(MD, 1), Transfer()),)
    assert isinstance(await node.dump(), CheckpointFailed), "its work since then would be lost"
    assert isinstance(await node.perform(Freeze("c1", WORKLOAD, False, 60.0)), CheckpointFailed)
    assert node.runtime.state == "THAWED"


async def test_a_dump_under_way_is_left_alone_and_its_failure_thawed(node: Node) -> None:
    await node.freeze(LATER, in_gang=True)
    assert node.will_thaw()
    node.captures.reports = (CaptureFailed("the store is away", retryable=True),)
    node.captures.goes_on.clear()
    dumping = asyncio.create_task(node.dump())
    await node.captures.begun.wait()
    assert not node.will_thaw()
    node.captures.goes_on.set()
    assert isinstance(await dumping, CheckpointFailed)
    await asyncio.wait_for(node.thawed.wait(), 60)


async def test_who_is_committed_and_to_be_killed_never_runs_on(node: Node) -> None:
    await node.freeze(LATER)
    node.captures.reports = (CaptureCommitted(SnapshotRef(MD, 1), Transfer()),)
    assert isinstance(await node.dump(), Committed)
    assert not node.will_thaw()
    assert isinstance(await node.perform(Kill("c1", WORKLOAD)), Killed)


async def test_nor_does_he_when_the_order_is_repeated_and_fails(node: Node) -> None:
    await node.freeze(LATER)
    node.captures.reports = (CaptureCommitted(SnapshotRef(MD, 1), Transfer()),)
    await node.dump()
    node.captures.reports = (CaptureFailed("the store is away", retryable=True),)
    assert isinstance(await node.dump(), CheckpointFailed)
    assert await node.stays_frozen()


async def test_who_is_committed_and_to_run_on_does(node: Node) -> None:
    await node.freeze(LATER)
    node.captures.reports = (CaptureCommitted(SnapshotRef(MD, 1), Transfer()),)
    assert isinstance(await node.dump(runs_on=True), Committed)
    await asyncio.wait_for(node.thawed.wait(), 60)


@pytest.mark.parametrize(
    ("order", "answer"), [(Thaw("c1", WORKLOAD), Thawed), (Abort("c1", WORKLOAD, MD, "why"), Aborted)]
)
async def test_an_order_takes_its_place(node: Node, order: Order, answer: type[Outcome]) -> None:
    await node.freeze(LATER)
    assert isinstance(await node.perform(order), answer)
    assert not node.will_thaw()


async def test_another_checkpoint_keeps_what_it_has_frozen(node: Node) -> None:
    await node.freeze(LATER, in_gang=True)
    await node.perform(Freeze("c2", WORKLOAD, True))
    assert not await node.agent._frozen.thaw_without_order("c1", WORKLOAD)
    assert node.runtime.state == "FROZEN"


async def test_an_order_without_a_deadline_has_none(node: Node) -> None:
    await node.freeze(None)
    assert not node.will_thaw()


async def test_an_agent_that_ends_leaves_what_it_has_frozen_to_the_next_one(node: Node) -> None:
    await node.freeze(LATER)
    await node.agent.__aexit__(None, None, None)
    assert not node.will_thaw()
    assert node.runtime.state == "FROZEN"


async def test_a_thaw_that_fails_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    thaw, failures = freezer.thaw_together, [SnapshotError("it does not thaw"), OSError("nor now")]

    def failing(*given: Any) -> None:
        if failures:
            raise failures.pop()
        thaw(*given)

    monkeypatch.setattr(freezer, "thaw_together", failing)
    await node.freeze()
    await asyncio.wait_for(node.thawed.wait(), 60)
    assert node.runtime.state == "THAWED"
