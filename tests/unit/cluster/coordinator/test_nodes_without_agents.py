"""On a node of which no agent has published facts nothing is ordered: an eviction there is not held for nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.kube.builtin_kinds import Metadata, Node
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Abort, Aborted, CheckpointFailed, Freeze, Order, Outcome
from cedana_sched.model.records import CheckpointStep
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint

RECORD = checkpoint(1, CheckpointStep.FREEZING)
FREEZE = Freeze(RECORD.uid, RECORD.workload)
ABORT = Abort(RECORD.uid, RECORD.workload, RECORD.identity, "its deadline has passed")
WITHOUT = Node(Metadata("node-1"))
WITH = Node(Metadata("node-1", annotations={names.NODE_FACTS: "{}"}))


async def first(projection: Projection, order: Order, *nodes: Node) -> Outcome | None:
    """What is answered at once; None: it waits for an agent."""
    answers = ObjectAgents(cast("Any", None), projection, filled(*nodes)).perform("node-1", order)
    answer = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    if answer.done():
        return answer.result()
    answer.cancel()
    return None


@pytest.fixture
def projection() -> Projection:
    found = Projection(cast("Any", None), SYSTEM)
    found.write((RECORD,), ())
    return found


async def test_freeze_fails_at_once_and_leaves_nothing_to_undo(projection: Projection) -> None:
    failed = await first(projection, FREEZE, WITHOUT)
    assert isinstance(failed, CheckpointFailed)
    assert "node node-1 has no agent" in failed.why
    assert not failed.retryable
    assert await first(projection, ABORT, WITHOUT) == Aborted(RECORD.uid)
    assert not projection.has_order(RECORD.uid)


@pytest.mark.parametrize("nodes", [(WITH,), ()], ids=["it has one", "the node is not known"])
async def test_else_it_is_ordered(projection: Projection, nodes: tuple[Node, ...]) -> None:
    assert await first(projection, FREEZE, *nodes) is None
    assert projection.has_order(RECORD.uid)


async def test_what_was_frozen_before_the_agent_left_is_thawed_by_an_order(projection: Projection) -> None:
    assert await first(projection, FREEZE, WITH) is None
    assert await first(projection, ABORT, WITHOUT) is None


async def test_what_an_earlier_coordinator_has_ordered_is_ordered_again() -> None:
    projection, body = Projection(cast("Any", None), SYSTEM), to_object(RECORD, SYSTEM)
    body["spec"]["firstOrder"] = {"number": 1}
    projection.register_existing_object(RECORD, body)
    assert await first(projection, FREEZE, WITHOUT) is None
