"""What an object shows of a transfer counts for the order under which it came, and for no later one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer
from cedana_sched.model import codec
from cedana_sched.model.orders import Outcome, Stage, Staged, StageFailed, StageProgress
from tests.unit.cluster.coordinator.test_believed_answers import OURS, RESTORE, WORKLOAD
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM
from tests.unit.coordinator.core.core_builders import ref

UID = RESTORE.uid
DAMAGED = StageFailed(UID, "chunk 7 is damaged", damaged=True)


class Staging:
    """A return whose agent fetches, as its object shows it."""

    def __init__(self) -> None:
        nothing = cast("Any", None)
        self.projection = Projection(nothing, SYSTEM)
        self.projection.write((RESTORE,), ())
        self.agents = ObjectAgents(nothing, self.projection, Informer(nothing))
        self.version = 0

    def show(self, number: int, read_bytes: int, answer: tuple[int, Outcome] | None = None) -> None:
        body = to_object(RESTORE, SYSTEM)
        self.version += 1
        body["metadata"] |= {"uid": "u", "resourceVersion": str(self.version)}
        body["status"] |= {"order": {"number": number, "order": {}}, "transfer": {"readBytes": read_bytes}}
        if answer is not None:
            outcome = codec.to_builtins(answer[1])
            body["status"]["answer"] = {"number": answer[0], "outcome": outcome}
        self.agents.restores._put(msgspec.json.decode(msgspec.json.encode(body), type=OrderedObject))

    async def staged(self, order: Stage, *shown: tuple[Any, ...]) -> list[Outcome]:
        async def collect() -> list[Outcome]:
            return [one async for one in self.agents.perform("node-1", order)]

        performing = asyncio.create_task(collect())
        await asyncio.sleep(0)
        for one in shown:
            self.show(*one)
        async with asyncio.timeout(60):
            return await performing


async def test_an_older_snapshot_counts_from_its_own_first_byte() -> None:
    """Bytes that come put a return's deadline off: those of the damaged one before must not stand for them."""
    side = Staging()
    first = await side.staged(
        Stage(UID, WORKLOAD, OURS), (1, 0), (1, 60), (1, 100), (1, 100, (1, DAMAGED))
    )  # fmt: skip
    assert first == [StageProgress(UID, 60), StageProgress(UID, 100), DAMAGED]
    second = await side.staged(
        Stage(UID, WORKLOAD, ref(6, OURS.identity)),
        (1, 100, (1, DAMAGED)),
        (2, 100, (1, DAMAGED)),
        (2, 30, (1, DAMAGED)),
        (2, 90, (2, Staged(UID))),
    )
    assert second == [StageProgress(UID, 30), StageProgress(UID, 90), Staged(UID)]
