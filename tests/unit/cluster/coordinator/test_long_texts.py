"""Whatever an agent, a pod or an earlier version has said, and however much of it: it costs no coordinator its life."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import projection
from cedana_sched.cluster.coordinator.answer_validation import truncate_outcome_texts
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import status_of, to_object
from cedana_sched.cluster.coordinator.status_patches import status_patch
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import CHECKPOINTS, CONFIG_MAPS, PODS, PREEMPTION_HOLDS
from cedana_sched.kube.response_decoding import read
from cedana_sched.model import codec
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    CheckpointFailed,
    FindSnapshot,
    Outcome,
    RemovalFailed,
    RestoreFailed,
    SnapshotFound,
    StageFailed,
)
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, Record
from cedana_sched.model.texts import LONGEST_TEXT
from cedana_sched.testing import FakeApi
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.test_believed_answers import DUMP, FIND, RESTORE, UID, Agents
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, Process, checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import CHECKPOINT, HOLD
from tests.unit.cluster.coordinator.test_policies_of_queues import OWNER, _cluster, _marked, _pod
from tests.unit.coordinator.core.core_builders import Told, victim

LONG = "x" * 40_000
"""More than a condition's message may have."""


def _order(body: Object) -> Object | None:
    found: Object | None = body.get("status", {}).get("order") or body["spec"].get("firstOrder")
    return found


async def test_a_coordinator_outlives_an_agents_long_answer() -> None:
    server = _cluster()
    server.put(PODS, _pod("Running", _marked(), scheduler="default-scheduler", owner=OWNER))
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=("kueue",))

    def is_shown() -> bool:
        return any((one.get("status") or {}).get("message") for one in server.all_of(CHECKPOINTS))

    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        await server.until(lambda: any(map(_order, server.all_of(CHECKPOINTS))))
        (body,) = server.all_of(CHECKPOINTS)
        order = _order(body)
        assert order is not None
        outcome = codec.to_builtins(CheckpointFailed(body["spec"]["uid"], LONG))
        answer = {"number": order["number"], "outcome": outcome}
        server.put(CHECKPOINTS, {**body, "status": {**(body.get("status") or {}), "answer": answer}})
        await server.until(is_shown)
    (body,) = server.all_of(CHECKPOINTS)
    assert len(body["status"]["message"]) == LONGEST_TEXT


async def test_what_an_earlier_release_has_logged_is_carried_over() -> None:
    server = FakeApi()
    earlier = Process(server, "earlier")
    await earlier.journal.load()
    await earlier.crash()  # it writes the log, and no object any more
    failed = replace(checkpoint(1, CheckpointStep.ABORTING), failure=LONG, verdict=Verdict.EVICT)
    hold = replace(HOLD, reasons={"other": LONG})
    await earlier.journal.save((failed, hold, checkpoint(2)), ())

    later = Process(server, "later")
    async with asyncio.timeout(60):
        loaded = await later.journal.load()
        await later.settle()
    await later.crash()
    assert len(loaded) == 3
    assert {resource for resource, _, _ in server.objects} <= {CONFIG_MAPS, CHECKPOINTS, PREEMPTION_HOLDS}
    assert max(len(text) for record in loaded for text in _texts(record)) == LONGEST_TEXT


def _texts(record: Record) -> list[str]:
    return list(record.reasons.values()) if isinstance(record, PreemptionHold) else [record.failure or ""]


async def test_a_record_that_no_object_can_be_made_of_costs_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = checkpoint(1, CheckpointStep.FREEZING), checkpoint(2, CheckpointStep.FREEZING)
    calls: list[str] = []

    def breaking(record: Record, *others: Any) -> Object:
        calls.append(record.uid)
        if record.uid == broken.uid and calls.count(record.uid) < 3:
            raise ValueError("a defect")
        return status_patch(record, *others)

    monkeypatch.setattr(projection, "status_patch", breaking)
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(projection, "WRITERS", 1)
    server = FakeApi()
    carrying = Projection(server, SYSTEM)
    running = asyncio.create_task(carrying.run())
    carrying.write((broken, whole), ())
    async with asyncio.timeout(60):
        await carrying.wait_flushed()
    assert not running.done()
    assert calls.count(broken.uid) >= 3
    assert {one["status"]["step"] for one in server.all_of(CHECKPOINTS)} == {"Freezing"}
    running.cancel()


async def test_what_is_forgotten_and_cannot_be_written_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(*_: Any) -> Object:
        raise ValueError("a defect")

    monkeypatch.setattr(projection, "status_patch", breaking)
    carrying = Projection(FakeApi(), SYSTEM)
    running = asyncio.create_task(carrying.run())
    carrying.write((), (checkpoint(1, CheckpointStep.READY),))
    async with asyncio.timeout(60):
        await carrying.wait_flushed()
    assert carrying.pending_records().forgotten == ()
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize(
    "outcome",
    [
        CheckpointFailed(UID, LONG, retryable=True),
        SnapshotFound(RESTORE.uid, problem=LONG),
        StageFailed(RESTORE.uid, LONG, damaged=True),
        RestoreFailed(RESTORE.uid, LONG),
        RemovalFailed(UID, LONG),
    ],
)
def test_of_each_answer_as_much_is_kept_as_a_record_has_room_for(outcome: Outcome) -> None:
    kept: Any = truncate_outcome_texts(outcome)
    field = "problem" if isinstance(outcome, SnapshotFound) else "why"
    assert len(getattr(kept, field)) == LONGEST_TEXT
    assert getattr(kept, field).endswith("…")
    assert replace(kept, **{field: LONG}) == outcome


async def test_of_a_long_answer_the_beginning_is_believed() -> None:
    [failed] = await Agents().answer(DUMP, CheckpointFailed(UID, LONG))
    assert isinstance(failed, CheckpointFailed)
    assert len(failed.why) == LONGEST_TEXT
    [unfound] = await Agents().answer(FIND, StageFailed(RESTORE.uid, LONG, retryable=True))
    assert isinstance(unfound, StageFailed)
    assert len(unfound.why) == LONGEST_TEXT


@pytest.mark.parametrize("order", [DUMP, FIND])
async def test_a_long_answer_that_cannot_be_read_is_quoted_in_short(order: Any) -> None:
    agents = Agents()
    [outcome] = await agents.answer(order, {"type": LONG})
    said = outcome.problem if isinstance(order, FindSnapshot) else outcome.why  # type: ignore[union-attr]
    assert said is not None
    assert len(said) < LONGEST_TEXT
    assert max(len(why) for _, why in agents.told) < LONGEST_TEXT


def _gang(members: int, why: str) -> list[Record]:
    told = Told()
    victims = [victim(f"w{n}", Identity("bio", "md", n), gang="g") for n in range(members)]
    told.preempt(*victims)
    first = next(one for one in told.core.records() if isinstance(one, Checkpoint))
    told.tell(CheckpointFailed(first.uid, why))
    return list(told.saved.values())


def test_a_gangs_failure_is_copied_to_its_members_in_short() -> None:
    """As `u9.py` did it: one node's agent answers for one of the gang's members."""
    failed = [one for one in _gang(40, LONG) if isinstance(one, Checkpoint)]
    sizes = [len(msgspec.json.encode(status_patch(one, None, 1))) for one in failed]
    assert len(sizes) == 40
    assert max(sizes) < 4 * LONGEST_TEXT + 2_000
    assert all(one.failure and one.failure.startswith(("x", "gang member name-of-w0: x")) for one in failed)


@pytest.mark.parametrize("why", [LONG, "ü" * 40_000])
def test_a_hold_has_room_for_the_reasons_of_a_large_gang(why: str) -> None:
    reasons = {f"{n:08x}-0000-4000-8000-000000000000": why for n in range(2_000)}
    verdicts = dict.fromkeys(reasons, Verdict.EVICT)
    body = to_object(replace(HOLD, reasons=reasons, verdicts=verdicts), SYSTEM)
    assert len(msgspec.json.encode(body)) < 1_000_000


def test_every_message_of_a_status_is_bounded() -> None:
    status = status_of(replace(CHECKPOINT, failure=LONG))
    messages = [status["message"], *(one["message"] for one in status["conditions"])]
    assert {len(message) for message in messages} == {LONGEST_TEXT}


def test_text_that_json_cannot_hold_is_written_all_the_same() -> None:
    assert status_of(replace(CHECKPOINT, failure="no file \udcff"))["message"] == "no file ?"


@pytest.mark.parametrize(
    ("into", "status"),
    [
        (KnownCheckpoint, {"answer": {"number": 1, "outcome": {"type": "RemoveFailed", "why": LONG}}}),
        (KnownCheckpoint, {"answer": {"number": 1, "outcome": {"type": LONG}}}),
        (OrderedObject, {"replacedBy": LONG}),
    ],
    ids=["why", "type", "replacedBy"],
)
def test_little_is_kept_of_what_an_agent_says_in_an_object_of_its_node(
    into: type[msgspec.Struct], status: Object
) -> None:
    """There are as many as its node has snapshots, and each may hold 1.5 MB."""
    metadata = {"name": "md", "namespace": "bio", "uid": "u", "resourceVersion": "1"}
    body = {"metadata": metadata, "spec": {"uid": "u", "identity": {"id": "md"}}, "status": status}
    found = read(CHECKPOINTS, msgspec.json.encode(body), into)
    assert isinstance(found, into)
    assert len(msgspec.json.encode(found)) < 2 * LONGEST_TEXT


async def test_outcome_that_is_longer_than_any_is_neither_kept_nor_believed() -> None:
    said = CheckpointFailed(UID, "x" * (1 << 20))
    metadata = {"name": "md", "namespace": "bio", "uid": "u", "resourceVersion": "1"}
    answer = {"number": 1, "outcome": codec.to_builtins(said)}
    body = {"metadata": metadata, "spec": {"uid": UID}, "status": {"answer": answer}}
    found = read(CHECKPOINTS, msgspec.json.encode(body), OrderedObject)
    assert len(msgspec.json.encode(found)) < 2 * LONGEST_TEXT
    [failed] = await Agents().answer(DUMP, said)
    assert isinstance(failed, CheckpointFailed)
    assert "is not accepted: it cannot be read" in failed.why
