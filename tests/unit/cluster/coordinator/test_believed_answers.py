"""An agent is believed what it was ordered, and nothing about others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.coordinator.answer_validation import first_objection_to, truncate_outcome_texts
from cedana_sched.cluster.coordinator.checkpoint_finalizer import _is_removed
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.orders_to_agents import AnswerRejectedError, ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.cluster.coordinator.retention_cleanup import RetentionCleanup
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Aborted,
    ApplyRetention,
    CheckpointFailed,
    Committed,
    Dump,
    FindSnapshot,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    Outcome,
    RemoveSnapshot,
    RestoreFailed,
    RestoreSnapshot,
    RestoreSucceeded,
    RetentionApplied,
    SnapshotFound,
    SnapshotRemoved,
    Stage,
    Staged,
    StageFailed,
)
from cedana_sched.model.policy import CheckpointPolicy, Compression, Retention
from cedana_sched.model.records import CheckpointStep, Record, Restore, RestoreStep, Transfer
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint

RECORD = checkpoint(1, CheckpointStep.DUMPING)
UID, IDENTITY, WORKLOAD = RECORD.uid, RECORD.identity, RECORD.workload
RESTORE = Restore(
    uid="restore.w1", adapter="kueue", workload=WORKLOAD, identity=IDENTITY, policy=CheckpointPolicy(),
    step=RestoreStep.WAITING, created_at=1_800_000_000.0, deadline=1_800_000_600.0,
)  # fmt: skip
BANK = Identity("tenant-b", "bank")
THEIRS, OURS = SnapshotRef(BANK, 7), SnapshotRef(IDENTITY, 7)
NEIGHBOUR = SnapshotRef(Identity("bio", "md", 2), 7)

DUMP = Dump(UID, WORKLOAD, IDENTITY, Compression.AUTO, "Preempted", "kueue", 60.0)
RETAIN = ApplyRetention(UID, IDENTITY, Retention(), (5,))
FIND = FindSnapshot(RESTORE.uid, IDENTITY, avoiding=(6,))
WANTED = FindSnapshot(RESTORE.uid, IDENTITY, SnapshotRef(Identity("bio", "older"), 2))

LIES: list[tuple[Order, Outcome, type | None]] = [
    (DUMP, Committed(UID, THEIRS, Transfer()), CheckpointFailed),
    (DUMP, Committed(UID, NEIGHBOUR, Transfer()), CheckpointFailed),
    (DUMP, Committed("another", OURS, Transfer()), CheckpointFailed),
    (DUMP, Committed(UID, SnapshotRef(IDENTITY, 0), Transfer()), CheckpointFailed),
    (DUMP, Committed(UID, OURS, Transfer(), leaves=THEIRS), CheckpointFailed),
    (DUMP, Committed(UID, OURS, Transfer(read_bytes=-1)), CheckpointFailed),
    (DUMP, Committed(UID, OURS, Transfer(stored_bytes=2**53 + 1)), CheckpointFailed),
    (DUMP, Committed(UID, OURS, Transfer(zero_bytes=10**400)), CheckpointFailed),
    (DUMP, Frozen(UID), CheckpointFailed),
    (DUMP, RetentionApplied(UID, (THEIRS,)), CheckpointFailed),
    (Freeze(UID, WORKLOAD), Frozen("another"), CheckpointFailed),
    (Kill(UID, WORKLOAD), Killed("another"), None),
    (Kill(UID, WORKLOAD), Aborted(UID), None),
    (RETAIN, RetentionApplied(UID, (THEIRS,)), None),
    (RETAIN, RetentionApplied(UID, (OURS, NEIGHBOUR)), None),
    (RETAIN, RetentionApplied(UID, (SnapshotRef(IDENTITY, 5),)), None),
    (RETAIN, RetentionApplied("another", (OURS,)), None),
    (FIND, SnapshotFound(RESTORE.uid, THEIRS), SnapshotFound),
    (FIND, SnapshotFound(RESTORE.uid, NEIGHBOUR), SnapshotFound),
    (FIND, SnapshotFound(RESTORE.uid, SnapshotRef(IDENTITY, 6)), SnapshotFound),
    (FIND, SnapshotFound("another", OURS), SnapshotFound),
    (WANTED, SnapshotFound(RESTORE.uid, OURS), SnapshotFound),
    (Stage(RESTORE.uid, WORKLOAD, OURS), Staged("another"), StageFailed),
    (RestoreSnapshot(RESTORE.uid, WORKLOAD, OURS), RestoreSucceeded("another"), RestoreFailed),
    (DUMP, Committed(UID, OURS, Transfer(), manifest_digest="../" * 20 + "abcd"), CheckpointFailed),
]


class Agents:
    """The coordinator's side of orders, over objects that somebody else writes."""

    def __init__(self) -> None:
        self.removed: list[SnapshotRef] = []
        self.told: list[tuple[str, str]] = []
        nothing = cast("Any", None)
        self.projection = Projection(nothing, SYSTEM)
        self.projection.write((RECORD, RESTORE), ())
        self.agents = ObjectAgents(
            nothing, self.projection, Informer(nothing), lambda refs, _: self.removed.extend(refs),
            on_answer_rejected=lambda kind, one, why: self.told.append((f"{kind.kind} {one.name}", why)),
        )  # fmt: skip

    async def answer(self, order: Order, outcome: Any, within: float = 60, **changes: Any) -> list[Outcome]:
        """What `perform` yields when the object of the order's record shows this answer."""
        record: Record = RESTORE if hasattr(order, "restore_uid") else RECORD
        body = to_object(record, SYSTEM)
        body["metadata"] |= {"uid": "u", "resourceVersion": "2", **changes}
        given = codec.to_builtins(outcome) if isinstance(outcome, msgspec.Struct) else outcome
        body["status"] |= {"order": {"number": 1, "order": {}}, "answer": {"number": 1, "outcome": given}}
        shown = msgspec.json.decode(msgspec.json.encode(body), type=OrderedObject)
        informer = self.agents._informers[record is RESTORE]
        performing = asyncio.create_task(_all(self.agents.perform("node-1", order)))
        await asyncio.sleep(0)
        informer._put(shown)
        async with asyncio.timeout(within):
            return await performing


async def _all(outcomes: Any) -> list[Outcome]:
    return [one async for one in outcomes]


TRUTHS: list[tuple[Order, Outcome]] = [
    (DUMP, Committed(UID, OURS, Transfer(), leaves=SnapshotRef(IDENTITY, 6), manifest_digest="0f" * 32)),
    (DUMP, CheckpointFailed(UID, "no")),
    (Kill(UID, WORKLOAD), Killed(UID, still_frozen=True)),
    (RETAIN, RetentionApplied(UID, (OURS, SnapshotRef(IDENTITY, 6)))),
    (FIND, SnapshotFound(RESTORE.uid, OURS)),
    (FIND, SnapshotFound(RESTORE.uid)),
    (WANTED, SnapshotFound(RESTORE.uid, WANTED.requested_snapshot)),
    (FIND, StageFailed(RESTORE.uid, "away", retryable=True)),
    (RestoreSnapshot(RESTORE.uid, WORKLOAD, OURS), RestoreSucceeded(RESTORE.uid)),
]


@pytest.mark.parametrize(("order", "outcome"), TRUTHS)
async def test_what_was_ordered_is_believed(order: Order, outcome: Outcome) -> None:
    agents = Agents()
    assert await agents.answer(order, outcome) == [outcome]
    assert agents.told == []
    assert agents.removed == (list(outcome.removed) if isinstance(outcome, RetentionApplied) else [])


@pytest.mark.parametrize(("order", "lie", "instead"), LIES)
async def test_what_is_about_others_is_not(order: Order, lie: Outcome, instead: type | None) -> None:
    agents = Agents()
    if instead is None:
        with pytest.raises(AnswerRejectedError):
            await agents.answer(order, lie)
    else:
        [outcome] = await agents.answer(order, lie)
        assert type(outcome) is instead
        said = outcome.problem if isinstance(outcome, SnapshotFound) else cast("Any", outcome).why
        assert "not accepted" in str(said)
        assert not getattr(outcome, "retryable", False)
        assert getattr(outcome, "restore_uid", UID) in {UID, RESTORE.uid}
    assert agents.removed == []
    assert len(agents.told) == 1


@pytest.mark.parametrize("nonsense", [{}, {"type": "Exploded"}, {"type": "Committed", "checkpoint_uid": UID}])
async def test_what_cannot_be_read_fails_in_words(nonsense: Any) -> None:
    agents = Agents()
    [outcome] = await agents.answer(DUMP, nonsense)
    assert isinstance(outcome, CheckpointFailed)
    assert "cannot be read" in outcome.why
    with pytest.raises(CedanaSchedError):
        await Agents().answer(Kill(UID, WORKLOAD), nonsense)


@pytest.mark.parametrize("changes", [{"namespace": "tenant-b"}, {"name": "forged"}])
async def test_an_object_with_the_uid_of_anothers_record_answers_nothing(changes: dict[str, str]) -> None:
    with pytest.raises(TimeoutError):
        await Agents().answer(DUMP, Committed(UID, OURS, Transfer()), within=0.5, **changes)


def _their_checkpoint(**status: Any) -> KnownCheckpoint:
    body = {
        "metadata": {"name": "theirs", "namespace": "tenant-b", "uid": "1", "resourceVersion": "1",
                     "labels": {"sched.cedana.ai/archived": "true"}},
        "spec": {"identity": {"id": "bank"}},
        "status": {"step": "Ready", "snapshot": {"id": "bank", "generation": 7}, **status},
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(body), type=KnownCheckpoint)


async def test_no_checkpoint_of_another_namespace_is_removed() -> None:
    """As `retained_of_another_node.py` did it."""
    informer: Informer[KnownCheckpoint] = Informer(cast("Any", None))
    removal = RetentionCleanup(cast("Any", None), informer, CheckpointsBySnapshot(informer))
    informer._put(_their_checkpoint())
    agents = Agents()
    agents.agents._on_snapshots_removed = removal.on_snapshots_removed
    with pytest.raises(AnswerRejectedError):
        await agents.answer(RETAIN, RetentionApplied(UID, (THEIRS,)))
    assert not removal.is_snapshot_removed(THEIRS, "")


def test_nothing_is_removed_before_it_is_ordered() -> None:
    removed = {"number": 9, "outcome": codec.to_builtins(SnapshotRemoved("c"))}
    order = {"number": 9, "order": codec.to_builtins(RemoveSnapshot("c", THEIRS))}
    freeze = {"number": 9, "order": codec.to_builtins(Freeze("c", WORKLOAD))}
    assert not _is_removed(_their_checkpoint(answer=removed))
    assert not _is_removed(_their_checkpoint(answer=removed, order=freeze))
    assert not _is_removed(_their_checkpoint(answer=removed, order={**order, "number": 10}))
    assert _is_removed(_their_checkpoint(answer=removed, order=order))


def test_what_is_said_of_answers_is_short() -> None:
    assert len(first_objection_to(Frozen("x" * 10_000), Freeze(UID, WORKLOAD)) or "") < 200


def test_notes_on_changed_files_are_few_and_short() -> None:
    kept = truncate_outcome_texts(RestoreSucceeded("r1", ("x" * 10_000,) * 1000)).changed_files
    assert {len(note) for note in kept} == {400}
    assert len(kept) == 10


def test_the_digest_of_a_manifest_is_known_when_its_record_is_forgotten() -> None:
    informer: Informer[KnownCheckpoint] = Informer(cast("Any", None))
    by_snapshot = CheckpointsBySnapshot(informer)
    informer._put(_their_checkpoint(manifestDigest="0f" * 32))
    theirs = SnapshotRef(Identity("tenant-b", "bank"), 7)

    assert by_snapshot.manifest_digest_of(theirs) == "0f" * 32
    assert by_snapshot.manifest_digest_of(SnapshotRef(Identity("tenant-a", "bank"), 7)) == ""


async def test_an_agent_is_told_by_what_a_manifest_is_known_also_when_its_record_is_forgotten() -> None:
    agents = Agents()
    agents.agents._manifest_digest_of = lambda snapshot: "0f" * 32 if snapshot == OURS else ""
    given: list[Order] = []

    def take(uid: str, order: Order) -> int:
        given.append(order)
        return 1

    agents.projection.enqueue_order = take  # type: ignore[method-assign]

    for order in (Stage(RESTORE.uid, WORKLOAD, OURS), Stage(RESTORE.uid, WORKLOAD, OURS, "ab" * 32)):
        performing = asyncio.create_task(_all(agents.agents.perform("node-1", order)))
        await asyncio.sleep(0)
        performing.cancel()
        await asyncio.gather(performing, return_exceptions=True)

    assert [order.manifest_digest for order in given if isinstance(order, Stage)] == ["0f" * 32, "ab" * 32]
