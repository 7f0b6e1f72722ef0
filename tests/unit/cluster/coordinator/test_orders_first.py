"""While the API server is busy, orders are written before what is only shown, and what is overtaken costs no write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from cedana_sched.cluster.coordinator import projection as projections
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.kube.client import Api
from cedana_sched.model.orders import Freeze, Kill
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint, CheckpointStep
from tests.unit.coordinator.core.core_builders import MD, POLICY, workload

MANY = 3 * projections.WRITERS


class Busy:
    """An API server that does one request at a time, when it is told to."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(0)
        self.written: list[tuple[str, str, bool]] = []
        """Of each status its object's name, its step, and whether an order stands beside it."""

        self.created: list[Any] = []

    async def create(self, resource: object, body: Any, *, into: object) -> None:
        self.created.append(body)

    async def patch(self, resource: object, name: str, namespace: str, patch: Any, subresource: str = "") -> None:
        await self.turn.acquire()
        self.written.append((name, patch["status"]["step"], "order" in patch["status"]))


def _checkpoint(number: int, step: CheckpointStep) -> Checkpoint:
    return Checkpoint(
        uid=f"uid-{number}", signal_uid="s", adapter="kueue", workload=workload(f"w{number}"), identity=MD,
        policy=POLICY, gang=None, after_commit=AfterCommit.STOP, reason="x", step=step, created_at=1000.0,
        deadline=1600.0,
    )  # fmt: skip


@asynccontextmanager
async def _projecting(server: Busy) -> AsyncIterator[Projection]:
    projection = Projection(cast("Api", server), "cedana-system")
    running = asyncio.create_task(projection.run())
    try:
        yield projection
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _shown(server: Busy, projection: Projection, *records: Checkpoint) -> None:
    """Objects that are there, each with the order to freeze; whatever is written next is no creation."""
    projection.write(records, ())
    for record in records:
        projection.enqueue_order(record.uid, Freeze(record.uid, record.workload))
        server.turn.release()
    await asyncio.wait_for(projection.wait_flushed(), 60)
    assert len(server.written) == len(records)
    server.written.clear()


async def test_first_orders_stand_in_their_creations_which_no_status_holds_up() -> None:
    server = Busy()
    async with _projecting(server) as projection:
        records = [_checkpoint(number, CheckpointStep.FREEZING) for number in range(MANY)]
        projection.write(tuple(records), ())
        for record in records:
            projection.enqueue_order(record.uid, Freeze(record.uid, record.workload))
        for _ in range(3 * MANY):
            await asyncio.sleep(0)
        assert [(body["spec"]["firstOrder"]["number"], body["spec"]["uid"]) for body in server.created] == [
            (1, record.uid) for record in records
        ]
        assert not server.written
        assert len(projection.pending_records().records) == MANY, "a coordinator that starts now sees no status"
        for _ in range(MANY):
            server.turn.release()
        await asyncio.wait_for(projection.wait_flushed(), 60)
        assert len(server.written) == MANY


async def test_orders_are_written_before_what_is_only_shown() -> None:
    server = Busy()
    async with _projecting(server) as projection:
        records = [_checkpoint(number, CheckpointStep.FREEZING) for number in range(MANY)]
        await _shown(server, projection, *records)
        projection.write(tuple(_checkpoint(number, CheckpointStep.COMMITTED) for number in range(MANY - 1)), ())
        for _ in range(3):  # every writer has one
            await asyncio.sleep(0)
        last = _checkpoint(MANY - 1, CheckpointStep.KILLING)
        projection.write((last,), ())
        projection.enqueue_order(last.uid, Kill(last.uid, last.workload))
        for _ in range(MANY):
            server.turn.release()
        await asyncio.wait_for(projection.wait_flushed(), 60)
        steps = [step for _, step, _ in server.written]
        assert steps.index(CheckpointStep.KILLING) <= projections.WRITERS


async def test_what_an_order_overtakes_is_not_written() -> None:
    server = Busy()
    async with _projecting(server) as projection:
        records = [_checkpoint(number, CheckpointStep.FREEZING) for number in range(MANY)]
        await _shown(server, projection, *records)
        projection.write(tuple(_checkpoint(number, CheckpointStep.COMMITTED) for number in range(MANY)), ())
        for _ in range(3):
            await asyncio.sleep(0)
        killing = [_checkpoint(number, CheckpointStep.KILLING) for number in range(MANY)]
        projection.write(tuple(killing), ())
        for record in killing:
            projection.enqueue_order(record.uid, Kill(record.uid, record.workload))
        for _ in range(2 * MANY):
            server.turn.release()
        await asyncio.wait_for(projection.wait_flushed(), 60)
        assert len(server.written) == MANY + projections.WRITERS  # those that were on their way, and one of each
        assert {name for name, step, _ in server.written if step == CheckpointStep.KILLING} == {
            name for name, _, _ in server.written
        }
        assert projection.pending_records().records == ()
