"""So many dumps at once on one node; who waits runs on, and the most urgent comes first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from cedana_sched.agent import node_agent
from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureReport, CaptureRequest
from cedana_sched.agent.dump_budget import BASE_BYTES, DumpBudget, DumpMetrics
from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.coordinator.core import record_uid_of
from cedana_sched.model import orders
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import Compression
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Transfer
from cedana_sched.store.storage_config import StorageConfig
from tests.unit.agent.agent_builders import FakeRuntime, _Toolchain


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Field:
    """A budget, and who has got his turn of it, in order."""

    def __init__(self, **bounds: Any) -> None:
        self.registry = CollectorRegistry()
        self.budget = DumpBudget(metrics=DumpMetrics(self.registry), clock=lambda: 100.0, **bounds)
        self.begun: list[str] = []
        self.refused: list[str] = []

    async def ask(self, uid: str, size: int = 0, left: float | None = None) -> None:
        has_turn = await self.budget.wait_for_slot(uid, size, left)
        (self.begun if has_turn else self.refused).append(uid)

    async def wanted(self, group: asyncio.TaskGroup, *asked: tuple[str, int, float | None]) -> None:
        for one in asked:
            group.create_task(self.ask(*one))
        await turns()

    async def over(self, *uids: str) -> list[str]:
        for uid in uids:
            self.budget.free_slot(uid)
        await turns()
        return self.begun

    def shown(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


async def test_least_time_left_after_its_own_dump_comes_first() -> None:
    field = Field(at_once=1)
    async with asyncio.TaskGroup() as group:
        await field.wanted(group, ("first", 0, 600), ("any", 0, None), ("late", 0, 300), ("soon", 0, 60))
        await field.wanted(group, ("large", 50_000_000_000, 300))  # 250 s of its 300
        assert field.begun == ["first"]
        assert (field.shown("cedana_sched_dumps_running"), field.shown("cedana_sched_dumps_waiting")) == (1, 4)
        for one in ("first", "large", "soon", "late", "any"):
            await field.over(one)
    assert field.begun == ["first", "large", "soon", "late", "any"]
    assert (field.shown("cedana_sched_dumps_running"), field.shown("cedana_sched_dumps_waiting")) == (0, 0)
    assert field.shown("cedana_sched_dump_wait_duration_seconds_count") == 5


async def test_memory_of_the_dumps_is_bounded_but_one_may_always() -> None:
    field = Field(at_once=9, memory_bytes=3 * BASE_BYTES)
    async with asyncio.TaskGroup() as group:
        await field.wanted(
            group, ("huge", 4 << 40, 1.0), ("a", 0, 10.0), ("b", 0, 20.0), ("c", 0, 30.0), ("d", 0, 40.0)
        )
        assert field.begun == ["huge"]
        assert await field.over("huge") == ["huge", "a", "b", "c"]
        await field.over("a")
    assert field.begun == ["huge", "a", "b", "c", "d"]


async def test_who_is_called_off_while_he_waits_gets_no_turn_and_keeps_nobody_back() -> None:
    field = Field(at_once=1)
    async with asyncio.TaskGroup() as group:
        await field.wanted(group, ("a", 0, 1.0), ("b", 0, 2.0), ("b", 0, 2.0), ("c", 0, 3.0))
        await field.over("b")
        assert field.refused == ["b", "b"]
        await field.over("a")
    assert field.begun == ["a", "c"]


async def test_turn_asked_for_again_is_the_same() -> None:
    field = Field(at_once=1)
    await field.ask("a")
    await field.ask("a")
    assert field.begun == ["a", "a"]
    await field.over("a")
    await field.ask("b")
    assert field.begun[-1] == "b"


class Node(FakeRuntime):
    """Any number of workloads, each in a folder of its own."""

    def of(self, uid: str) -> Path:
        folder = self.freezer / uid
        if not folder.exists():
            folder.mkdir()
            (folder / "freezer.state").write_text("THAWED")
            (folder / "cgroup.procs").write_text("")
        return folder

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        return RunningWorkload((RunningContainer(1, self.of(workload.uid)),))

    def states(self, *uids: str) -> list[str]:
        return [(self.of(uid) / "freezer.state").read_text() for uid in uids]


class Captures:
    """Dumps that last until they are told to end."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self._ends: dict[str, asyncio.Event] = {}

    async def wait_for_earlier_captures(self) -> None: ...

    async def stop_other_captures(self, uid: str, running: RunningWorkload | None) -> None: ...

    async def stop(self, uid: str, running: RunningWorkload | None) -> None:
        self.end(uid)

    async def run(self, request: CaptureRequest) -> AsyncIterator[CaptureReport]:
        uid = request.checkpoint_uid
        self.running.add(uid)
        self.most = max(self.most, len(self.running))
        await self._ends.setdefault(uid, asyncio.Event()).wait()
        self.running.discard(uid)
        yield CaptureCommitted(SnapshotRef(request.identity, 1), Transfer())

    def unended(self) -> set[str]:
        return {uid for uid in self.running if not self._ends[uid].is_set()}

    def end(self, uid: str) -> None:
        self._ends.setdefault(uid, asyncio.Event()).set()


class Agent:
    def __init__(self, folder: Path, at_once: int) -> None:
        (folder / "store").mkdir()
        self.node = Node(folder)
        self.captures = Captures()
        self.agent = NodeAgent(
            runtime=self.node,
            restorer=cast("Any", None),  # nothing is restored
            storage=StorageConfig.load({"path": str(folder / "store")}),
            toolchain=cast("Any", _Toolchain()),
            cache_directory=folder / "cache",
            state_directory=folder / "state",
            budget=DumpBudget(at_once),
        )
        self.agent._captures = cast("Any", self.captures)
        self.outcomes: dict[str, list[orders.Outcome]] = {}

    async def freeze(self, uid: str, *, in_gang: bool = False) -> None:
        await self._perform(orders.Freeze(uid, self.ref(uid), in_gang, 60.0))

    async def dump(self, uid: str) -> None:
        dump = orders.Dump(uid, self.ref(uid), Identity("default", uid), Compression.ZSTD, "why", "kueue", 60.0)
        await self._perform(dump)

    async def abort(self, uid: str) -> None:
        await self._perform(orders.Abort(uid, self.ref(uid), Identity("default", uid), "called off"))

    async def checkpoint(self, uid: str) -> None:
        await self.freeze(uid)
        await self.dump(uid)

    @staticmethod
    def ref(uid: str) -> WorkloadRef:
        return WorkloadRef(uid, "default", uid, "n1")

    async def _perform(self, order: orders.Order) -> None:
        async for outcome in self.agent.perform(order):
            self.outcomes.setdefault(record_uid_of(order), []).append(outcome)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - threads freeze, and tell nobody here
            await asyncio.sleep(0.001)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path, 2)


async def test_who_waits_is_not_frozen(agent: Agent) -> None:
    uids = [f"w{number}" for number in range(6)]
    async with asyncio.TaskGroup() as group:
        for uid in uids:
            group.create_task(agent.checkpoint(uid))
        for done in range(6):
            await until(lambda done=done: len(agent.captures.running) == min(2, 6 - done))
            states = agent.node.states(*uids)
            assert states.count("FROZEN") == min(done + 2, 6), "those that were dumped stay frozen, and two are dumped"
            agent.captures.end(min(agent.captures.running))
            await until(lambda done=done: sum(len(said) == 2 for said in agent.outcomes.values()) == done + 1)
    assert agent.captures.most == 2


async def test_gang_is_frozen_together_and_dumped_in_turn(agent: Agent) -> None:
    uids = [f"w{number}" for number in range(4)]
    async with asyncio.TaskGroup() as group:
        for uid in uids:
            group.create_task(agent.freeze(uid, in_gang=True))
    assert agent.node.states(*uids) == ["FROZEN"] * 4
    async with asyncio.TaskGroup() as group:
        for uid in uids:
            group.create_task(agent.dump(uid))
        for left in range(len(uids), 0, -1):
            await until(lambda left=left: len(agent.captures.unended()) == min(2, left))
            agent.captures.end(min(agent.captures.unended()))
    assert agent.captures.most == 2


async def test_who_is_called_off_while_he_waits_was_never_frozen(agent: Agent) -> None:
    async with asyncio.TaskGroup() as group:
        for uid in ("w0", "w1"):
            group.create_task(agent.checkpoint(uid))
        await until(lambda: len(agent.captures.running) == 2)
        group.create_task(agent.freeze("w2"))
        await turns()
        await agent.abort("w2")
        for uid in ("w0", "w1"):
            agent.captures.end(uid)
    assert agent.node.states("w2") == ["THAWED"]
    assert [type(one).__name__ for one in agent.outcomes["w2"]] in (
        ["Aborted", "CheckpointFailed"], ["CheckpointFailed", "Aborted"],
    )  # fmt: skip


class Measurement:
    """The measurement of workloads' memory, which lasts until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.count = 0
        monkeypatch.setattr(node_agent, "resident_bytes_of", self._measure)

    def _measure(self, running: RunningWorkload) -> int:
        self.count += 1
        assert self.may_end.wait(60)
        return len(running.containers)


@pytest.fixture
def full(tmp_path: Path) -> Agent:
    """An agent with one slot."""
    return Agent(tmp_path, 1)


async def _start(agent: Agent, group: asyncio.TaskGroup, order: str, uid: str) -> asyncio.Task[None]:
    """Start the part of a checkpoint that waits for a slot."""
    if order == "freeze":
        return group.create_task(agent.freeze(uid))
    await agent.freeze(uid, in_gang=True)
    return group.create_task(agent.dump(uid))


@pytest.mark.parametrize("order", ["freeze", "dump"])
async def test_checkpoint_that_is_called_off_while_it_is_measured_takes_no_slot(
    full: Agent, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(full.checkpoint("w0"))
        await until(lambda: full.captures.running == {"w0"})
        measurement = Measurement(monkeypatch)
        waiting = await _start(full, group, order, "w1")
        await until(lambda: measurement.count == 1)
        await full.abort("w1")
        measurement.may_end.set()
        await asyncio.wait_for(waiting, 60)
        assert full.captures.running == {"w0"}, "it does not wait for the slot of another one"
        full.captures.end("w0")
    assert {type(one).__name__ for one in full.outcomes["w1"][-2:]} == {"Aborted", "CheckpointFailed"}
    assert full.node.states("w1") == ["THAWED"]


@pytest.mark.parametrize("order", ["freeze", "dump"])
async def test_checkpoint_that_is_called_off_once_it_is_measured_leaves_the_queue(full: Agent, order: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(full.checkpoint("w0"))
        await until(lambda: full.captures.running == {"w0"})
        waiting = await _start(full, group, order, "w1")
        await until(lambda: "w1" in full.agent._budget._waiting)
        await full.abort("w1")
        await asyncio.wait_for(waiting, 60)
        assert full.captures.running == {"w0"}
        full.captures.end("w0")
    assert full.node.states("w1") == ["THAWED"]


async def test_checkpoint_that_is_called_off_before_it_is_measured_is_not_measured(
    full: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = Measurement(monkeypatch)
    measurement.may_end.set()
    find_running, is_looked_for = full.node.find_running, asyncio.Event()
    is_called_off = asyncio.Event()

    async def find_slowly(workload: WorkloadRef) -> RunningWorkload | None:
        is_looked_for.set()
        await is_called_off.wait()
        return await find_running(workload)

    monkeypatch.setattr(full.node, "find_running", find_slowly)
    monkeypatch.setattr(full.agent._preflight, "find_freeze_obstacle", AsyncMock(return_value=None))
    async with asyncio.TaskGroup() as group:
        group.create_task(full.freeze("w1"))
        await is_looked_for.wait()
        group.create_task(full.abort("w1"))
        await turns()
        is_called_off.set()
    assert measurement.count == 0
    assert full.agent._budget._running == {}
