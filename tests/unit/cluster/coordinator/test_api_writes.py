"""A victim costs the API server so many writes, however many there are, and however long its dump takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

import pytest

from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.node.order_feed import OrderFeed, ProgressPlan
from cedana_sched.coordinator import Coordinator
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model import orders
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal
from cedana_sched.model.records import Transfer
from cedana_sched.testing import FakeApi
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, pod_uid
from tests.unit.coordinator.core.core_builders import victim

PER_VICTIM = 20
"""Writes of a preemption's Checkpoint from its creation to its last answer, its share of the hold and of the log."""
PROGRESS = 8
"""Of them at most so many tell the progress of a dump of ten minutes."""


class _Scheduler:
    name: ClassVar[str] = "scripted"

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.released = asyncio.Event()

    async def reports(self) -> AsyncIterator[Report]:
        yield Preempted(self.signal)
        await asyncio.Event().wait()

    async def release(self, release: Release) -> None:
        self.released.set()


class _Silent:
    def on_event(self, tell: PublishEvent) -> None: ...


class Preemption:
    """So many victims on one node, each with a dump that tells its progress each second for so long."""

    def __init__(self, victims: int, dump_seconds: int) -> None:
        self.server = FakeApi()
        self.victims = tuple(
            victim(pod_uid(number), Identity("bio", "md", number), CheckpointPolicy()) for number in range(victims)
        )
        self.dump_seconds = dump_seconds
        self.retained = 0
        self.now = 0.0

    async def _perform(self, order: orders.Order) -> AsyncIterator[orders.Outcome]:
        match order:
            case orders.Freeze(uid):
                yield orders.Frozen(uid)
            case orders.Dump(uid, _, identity):
                for second in range(self.dump_seconds):
                    self.now += 1 / len(self.victims)
                    yield orders.Progress(uid, Transfer(read_bytes=second + 1))
                    for _ in range(5):
                        await asyncio.sleep(0)
                yield orders.Committed(uid, SnapshotRef(identity, 1), Transfer(read_bytes=3 << 30))
            case orders.Kill(uid):
                yield orders.Killed(uid)
            case orders.ApplyRetention(uid):
                self.retained += 1
                yield orders.RetentionApplied(uid)

    async def run(self) -> FakeApi:
        api = self.server
        projection = Projection(api, SYSTEM)
        agents = ObjectAgents(api, projection, cast("Any", filled()))
        feed = OrderFeed(api, "n1", self._perform, clock=lambda: self.now)
        clock = SystemClock()
        scheduler = _Scheduler(Signal("s", "scripted", self.victims, "x", clock.now()))
        journal = ObjectJournal(api, SYSTEM, "me", projection)
        coordinator = Coordinator(
            journal=journal, adapters={"scripted": scheduler}, agents=agents, clock=clock, listener=_Silent()
        )
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (projection.run(), agents.run(), feed.run())]
            async with coordinator:
                await scheduler.released.wait()
                while self.retained < len(self.victims):  # noqa: ASYNC110 - it lets everybody else go on
                    await asyncio.sleep(0)
                await projection.wait_flushed()
            for task in tasks:
                task.cancel()
        return self.server


def _progress_writes(server: FakeApi) -> int:
    statuses = [write.body.get("status", {}) for write in server.traffic.writes]
    return sum("transfer" in status and "step" not in status for status in statuses)


@pytest.mark.parametrize("victims", [1, 50])
@pytest.mark.parametrize("dump_seconds", [1, 59, 590])
async def test_writes_of_a_victim_are_bounded(victims: int, dump_seconds: int) -> None:
    server = await Preemption(victims, dump_seconds).run()
    assert _progress_writes(server) <= PROGRESS * victims
    assert bool(_progress_writes(server)) is (dump_seconds > 2)
    others = server.traffic.attempts.total() - _progress_writes(server)
    fixed = 10  # the log's and the hold's, when there is one victim to share them
    assert others <= PER_VICTIM * victims + fixed, server.traffic.attempts


async def test_answer_does_not_wait_for_progress_and_no_progress_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server takes progress up, and answers it only long after the answer to the order was written."""
    preemption = Preemption(1, 30)
    server = preemption.server
    patch, held = server.patch, asyncio.Event()
    late: list[Any] = []

    async def slow(*given: Any, **named: Any) -> None:
        sent = given[3]
        if "transfer" in sent.get("status", {}) and "step" not in sent["status"]:
            late.append((given, named))
            await held.wait()
        await patch(*given, **named)

    monkeypatch.setattr(server, "patch", slow)
    await preemption.run()
    assert late, "no progress was told"
    [body] = server.all_of(CHECKPOINTS)
    assert body["status"]["transfer"]["readBytes"] == 3 << 30
    for given, named in late:  # what a connection that was given up may still deliver
        with pytest.raises(ConflictError):
            await patch(*given, **named)
    [body] = server.all_of(CHECKPOINTS)
    assert body["status"]["transfer"]["readBytes"] == 3 << 30


@pytest.mark.parametrize(("limit", "most"), [(1.0, 2), (60.0, 7), (600.0, 8), (3600.0, 10), (86400.0, 14)])
def test_progress_is_told_seldom_and_often_enough(limit: float, most: int) -> None:
    plan = ProgressPlan(limit, 0.0)
    times = [0.0, *(at / 10 for at in range(int(limit * 10)) if plan.is_due(at / 10))]
    assert len(times) - 1 <= most
    gaps = [later - earlier for earlier, later in zip(times, [*times[1:], limit], strict=True)]
    assert max(gaps) <= max(limit / 4, 2.0) + 0.2
