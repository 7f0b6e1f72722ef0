"""Whatever an agent answers to an order: what it was ordered, a failure in its place, or an error in words."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.cluster.coordinator.answer_validation import first_objection_to
from cedana_sched.cluster.coordinator.orders_to_agents import AnswerRejectedError
from cedana_sched.model import codec
from cedana_sched.model.identity import LARGEST_GENERATION, SnapshotRef
from cedana_sched.model.orders import Order, Outcome
from tests.unit.cluster.coordinator.test_believed_answers import IDENTITY, LIES, RESTORE, TRUTHS, UID, Agents
from tests.unit.store.test_any_bytes_in_the_store import VALUES, places, replaced

ORDERS = [order for order, *_ in (*TRUTHS, *LIES)]
OUTCOMES = [
    msgspec.json.decode(codec.encode(outcome))
    for outcome in (*(outcome for _, outcome in TRUTHS), *(outcome for _, outcome, _ in LIES))
]
WORDS = (
    VALUES
    | st.sampled_from([UID, RESTORE.uid, "tenant-b", "../x", "9" * 5_000, LARGEST_GENERATION + 1, -1, "0f" * 32, "\0"])
    | st.sampled_from(OUTCOMES)
)


@st.composite
def answers(draw: st.DrawFn) -> Any:
    outcome = draw(st.sampled_from(OUTCOMES))
    for _ in range(draw(st.integers(0, 2))):
        outcome = replaced(outcome, draw(st.sampled_from(places(outcome))), draw(WORDS))
    return outcome


def _is_json(value: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False
    return True


async def _answered(order: Order, outcome: Any) -> list[Outcome]:
    agents = Agents()
    try:
        found = await agents.answer(order, outcome)
    except AnswerRejectedError:
        assert agents.told
        return []
    for one in agents.removed:
        assert isinstance(one, SnapshotRef)
        assert one.identity == IDENTITY, "only what the order was about counts as removed"
    return found


@given(st.sampled_from(ORDERS), answers().filter(_is_json))
@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
def test_any_answer(order: Order, outcome: Any) -> None:
    with structlog.testing.capture_logs():
        for found in asyncio.run(_answered(order, outcome)):
            assert first_objection_to(found, order) is None
