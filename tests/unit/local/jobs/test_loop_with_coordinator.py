"""Loop, adapter and the real coordinator over one journal; only the node is simulated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.local.jobs.job import Job, JobPhase
from cedana_sched.local.jobs.job_event_rules import RunEndDetails, RunStartDetails
from cedana_sched.local.jobs.journal import SqliteJournal
from cedana_sched.local.jobs.loop import SchedulingLoop
from cedana_sched.local.views import EventView
from cedana_sched.model import orders
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import Order, Outcome
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Transfer
from tests.unit.local.jobs.job_builders import configuration, submission


class Node:
    """A machine that obeys at once. It outlives the engine: processes and snapshots stay."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.snapshots: dict[Identity, int] = {}
        self.loop: SchedulingLoop | None = None
        self.dumps_allowed = asyncio.Event()
        self.dumping = asyncio.Event()
        self.dumps_allowed.set()
        self.refusal: str | None = None

    async def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        assert node == "here"
        yield await self._obey(order)

    def repeat_order(self, node: str, order: Order) -> None: ...

    async def lost_nodes(self) -> AsyncIterator[NodeLost]:
        await asyncio.Event().wait()
        yield NodeLost("never")

    async def _obey(self, order: Order) -> Outcome:  # noqa: C901  # one line an order
        match order:
            case orders.Freeze(uid, _):
                return orders.Frozen(uid)
            case orders.Dump(checkpoint_uid=uid, identity=identity):
                return await self._dump(uid, identity)
            case orders.Kill(uid, workload):
                await self.end(workload.uid, None, signal="SIGKILL")
                return orders.Killed(uid)
            case orders.Thaw(uid, _):
                return orders.Thawed(uid)
            case orders.Abort(checkpoint_uid=uid):
                return orders.Aborted(uid)
            case orders.FindSnapshot(restore_uid=uid, identity=identity, requested_snapshot=wanted):
                newest = self.snapshots.get(identity)
                return orders.SnapshotFound(uid, wanted or (SnapshotRef(identity, newest) if newest else None))
            case orders.Stage(restore_uid=uid):
                return orders.Staged(uid)
            case orders.RestoreSnapshot(uid, workload, snapshot):
                await self.begin(workload, RunStartDetails(SystemClock().now(), restored=True, snapshot=str(snapshot)))
                return orders.RestoreSucceeded(uid)
            case orders.StartCold(uid, workload, why):
                await self.begin(workload, RunStartDetails(SystemClock().now(), cold_because=why))
                return orders.StartedCold(uid)
            case orders.FailWorkload(uid, workload, why):
                await self.end(workload.uid, None, failure=why)
                return orders.WorkloadFailed(uid)
            case orders.ApplyRetention(checkpoint_uid=uid):
                return orders.RetentionApplied(uid)
            case orders.RemoveSnapshot() | orders.DiscardCancelled():
                raise AssertionError("the engine's objects are not deleted")

    async def _dump(self, uid: str, identity: Identity) -> Outcome:
        self.dumping.set()
        await self.dumps_allowed.wait()
        if self.refusal is not None:
            return orders.CheckpointFailed(uid, self.refusal)
        self.snapshots[identity] = self.snapshots.get(identity, 0) + 1
        return orders.Committed(uid, SnapshotRef(identity, self.snapshots[identity]), Transfer())

    async def begin(self, workload: WorkloadRef, beginning: RunStartDetails) -> None:
        assert self.loop is not None
        self.alive.add(workload.uid)
        await self.loop.on_run_began(workload.uid, beginning)

    async def end(self, uid: str, exit_code: int | None, **how: str) -> None:
        assert self.loop is not None
        self.alive.discard(uid)
        await self.loop.on_run_ended(uid, RunEndDetails(SystemClock().now(), exit_code, **how))  # type: ignore[arg-type]


class Engine:
    """What the engine wires together, with the run control and the watcher on the node's side."""

    def __init__(self, directory: Path, node: Node) -> None:
        self._directory = directory
        self._node = node
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop: SchedulingLoop
        self.tells: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        async with SqliteJournal.open(self._directory) as journal:
            config = configuration()
            self.loop = SchedulingLoop(
                config, journal, self, node="here", outputs=self._directory, now=SystemClock().now
            )
            self.loop.add_watcher(self)
            self._node.loop = self.loop
            await self.loop.load()
            coordinator = Coordinator(
                journal=journal,
                adapters={"embedded": EmbeddedAdapter(self.loop)},
                agents=self._node,
                clock=SystemClock(),
                listener=self,
            )
            async with coordinator:
                await self.loop.resume_after_restart()
                yield self

    def start(self, workload: WorkloadRef) -> None:
        self._later(self._node.begin(workload, RunStartDetails(SystemClock().now())))

    def terminate(self, run: str) -> None:
        self._later(self._node.end(run, 143))

    def on_changes(self, jobs: tuple[Job, ...], events: tuple[EventView, ...]) -> None:
        self._later(self._notify())

    def on_event(self, tell: PublishEvent) -> None:
        self.tells.append(tell.kind)

    def _later(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine of ours
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def phase(self, name: str, phase: JobPhase) -> Job:
        await self.until(lambda: self.loop.find(name).phase is phase)
        return self.loop.find(name)

    async def submit(self, name: str, group: str, cpus: str) -> None:
        await self.loop.submit(submission(group, name=name, cpus=cpus))


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_preempted_job_continues_from_its_snapshot_when_there_is_room_again(tmp_path: Path, node: Node) -> None:
    async with Engine(tmp_path, node).running() as engine:
        await engine.submit("sim", "bio", "4")
        await engine.phase("sim", JobPhase.RUNNING)
        await engine.submit("train", "ml", "2")
        await engine.phase("train", JobPhase.RUNNING)
        assert (await engine.phase("sim", JobPhase.QUEUED)).runs[0].ending == "preempted"
        await node.end(engine.loop.find("train").runs[0].uid, 0)
        sim = await engine.phase("sim", JobPhase.RUNNING)
        assert sim.runs[1].restored_from == "default/sim/0/main@1"
        assert sim.work_saved_seconds > 0
        await node.end(sim.runs[1].uid, 0)
        await engine.phase("sim", JobPhase.SUCCEEDED)

    assert node.alive == set()


async def test_an_engine_that_dies_in_the_middle_of_a_dump_carries_on(tmp_path: Path, node: Node) -> None:
    node.dumps_allowed.clear()
    async with Engine(tmp_path, node).running() as engine:
        await engine.submit("sim", "bio", "4")
        await engine.phase("sim", JobPhase.RUNNING)
        await engine.submit("train", "ml", "2")
        await engine.phase("sim", JobPhase.PREEMPTING)
        await node.dumping.wait()
    node.dumps_allowed.set()

    async with Engine(tmp_path, node).running() as again:
        await again.phase("train", JobPhase.RUNNING)
        await again.phase("sim", JobPhase.QUEUED)
        await node.end(again.loop.find("train").runs[0].uid, 0)
        sim = await again.phase("sim", JobPhase.RUNNING)

    assert [run.restored_from for run in sim.runs] == [None, "default/sim/0/main@1"]
    assert node.alive == {sim.runs[1].uid}


async def test_a_victim_that_cannot_be_dumped_is_let_go_and_starts_anew_with_the_reason(
    tmp_path: Path, node: Node
) -> None:
    node.refusal = "it holds a socket to another machine"
    async with Engine(tmp_path, node).running() as engine:
        await engine.submit("sim", "bio", "4")
        await engine.phase("sim", JobPhase.RUNNING)
        await engine.submit("train", "ml", "2")
        await engine.phase("train", JobPhase.RUNNING)
        await node.end(engine.loop.find("train").runs[0].uid, 0)
        sim = await engine.phase("sim", JobPhase.RUNNING)

    assert "socket to another machine" in (sim.runs[1].cold_because or "")


async def test_a_preemption_that_is_called_off_leaves_the_victim_running(tmp_path: Path, node: Node) -> None:
    node.dumps_allowed.clear()
    async with Engine(tmp_path, node).running() as engine:
        await engine.submit("sim", "bio", "4")
        await engine.phase("sim", JobPhase.RUNNING)
        await engine.submit("train", "ml", "2")
        await node.dumping.wait()
        await engine.loop.cancel("train")
        sim = await engine.phase("sim", JobPhase.RUNNING)

    assert len(sim.runs) == 1
    assert node.alive == {sim.runs[0].uid}


async def test_a_stopped_job_is_restored_from_the_generation_that_is_asked_for(tmp_path: Path, node: Node) -> None:
    async with Engine(tmp_path, node).running() as engine:
        await engine.submit("sim", "bio", "1")
        for _ in range(2):
            await engine.phase("sim", JobPhase.RUNNING)
            await engine.loop.checkpoint("sim", leave_running=False)
            await engine.phase("sim", JobPhase.SUSPENDED)
            await engine.loop.restore("sim", 1)
        sim = await engine.phase("sim", JobPhase.RUNNING)

    assert [run.restored_from for run in sim.runs] == [None, "default/sim/0/main@1", "default/sim/0/main@1"]
