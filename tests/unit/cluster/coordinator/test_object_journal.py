"""The journal over objects: whatever was saved is read back, at whatever request the coordinator dies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.owner_references import OwnerReferences
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import object_key_of, to_object
from cedana_sched.cluster.coordinator.redo_log import LOG_NAME, FencedError
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.resources import CHECKPOINTS, CONFIG_MAPS
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Freeze
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, Record
from cedana_sched.testing import FakeApi
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.purged_server import purged_server
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD

SYSTEM = "cedana-system"
_STEPS = [step for step in CheckpointStep if step is not CheckpointStep.READY]


def pod_uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def checkpoint(number: int, step: CheckpointStep = CheckpointStep.WAITING) -> Checkpoint:
    identity = Identity("bio", "md", number)
    return Checkpoint(
        uid=f"s.w{number}.1",
        signal_uid="s",
        adapter="kueue",
        workload=WorkloadRef(pod_uid(number), "bio", f"md-{number}", "node-1"),
        identity=identity,
        policy=CheckpointPolicy(),
        gang=None,
        after_commit=AfterCommit.STOP,
        reason="InCohortReclamation",
        step=step,
        created_at=1_800_000_000.0,
        deadline=1_800_000_600.0,
        snapshot=SnapshotRef(identity, 1) if step is CheckpointStep.READY else None,
    )


POD_UID = pod_uid(1)
READY = checkpoint(1, CheckpointStep.READY)


class Process:
    """One coordinator process, as far as its journal goes. `crash` ends it wherever it is."""

    def __init__(self, server: FakeApi, name: str) -> None:
        api = server
        self.projection = Projection(api, SYSTEM)
        self.journal = ObjectJournal(api, SYSTEM, name, self.projection)
        self._task = asyncio.create_task(self.projection.run())

    async def crash(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def settle(self) -> None:
        await self.projection.wait_flushed()
        pending = self.projection.pending_records()
        assert not pending.records
        assert not pending.forgotten


def by_uid(records: tuple[Record, ...]) -> dict[str, Record]:
    return {record.uid: record for record in records}


@pytest.mark.parametrize("seed", range(60))
async def test_what_was_saved_is_loaded_after_a_crash_at_any_instant(seed: int) -> None:
    rng = Random(seed)
    server = purged_server()
    saved: dict[str, Record] = {}
    for life in range(4):
        process = Process(server, f"process-{life}")
        assert by_uid(await process.journal.load()) == saved
        for _ in range(rng.randrange(12)):
            chosen = rng.sample(range(6), rng.randrange(1, 5))
            known = [number for number in chosen if f"s.w{number}.1" in saved]
            forget = tuple(saved[f"s.w{number}.1"] for number in known if rng.random() < 0.2)
            gone = {record.uid for record in forget}
            records = tuple(checkpoint(number, rng.choice(_STEPS)) for number in chosen if f"s.w{number}.1" not in gone)
            if rng.random() < 0.2:
                server.traffic.answers_lost.add(server.traffic.requests + rng.randrange(1, 4))
            for _ in range(3):  # as the shell does: again until it succeeds
                with suppress(ApiUnavailableError):
                    await process.journal.save(records, forget)
                    break
            else:
                pytest.fail("the server fails at most twice in a row")
            saved = {uid: record for uid, record in saved.items() if uid not in gone} | by_uid(records)
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
        if rng.random() < 0.3:
            await process.settle()
        await process.crash()
    last = Process(server, "last")
    await last.journal.load()
    await last.settle()
    await last.crash()
    shown = {key for key in server.objects if key[0] == CHECKPOINTS}
    assert shown == {(CHECKPOINTS, *object_key_of(record, SYSTEM)) for record in saved.values()}


async def test_who_lost_the_lease_without_noticing_writes_nothing_any_more() -> None:
    server = purged_server()
    old, new = Process(server, "old"), Process(server, "new")
    await old.journal.load()
    await old.journal.save((checkpoint(1),), ())
    await new.journal.load()
    with pytest.raises(FencedError, match=r"another coordinator \(new\) writes the journal"):
        await old.journal.save((checkpoint(2),), ())
    await new.journal.save((checkpoint(3),), ())
    await old.crash()
    await new.crash()
    process = Process(server, "third")
    assert set(by_uid(await process.journal.load())) == {"s.w1.1", "s.w3.1"}
    await process.crash()


async def test_a_write_whose_answer_was_lost_is_no_fence() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    server.traffic.answers_lost.add(server.traffic.requests + 1)
    with pytest.raises(ApiUnavailableError):
        await process.journal.save((checkpoint(1),), ())
    await process.journal.save((checkpoint(1), checkpoint(2)), ())
    await process.crash()


async def test_who_loads_waits_for_an_api_server_that_does_not_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    server = purged_server()
    before = Process(server, "before")
    await before.journal.load()
    await before.journal.save((checkpoint(1),), ())
    await before.crash()
    server.traffic.fails |= {server.traffic.requests + 1, server.traffic.requests + 4}
    process = Process(server, "process")
    assert set(by_uid(await process.journal.load())) == {"s.w1.1"}
    await process.crash()


async def test_a_damaged_log_leaves_what_the_objects_say() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    await process.journal.save((checkpoint(1),), ())
    await process.settle()
    await process.crash()
    server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME]["binaryData"] = {"entries.json.zst": "!"}
    again = Process(server, "again")
    assert set(by_uid(await again.journal.load())) == {"s.w1.1"}
    await again.crash()


async def test_a_step_and_its_order_are_one_request() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    await process.journal.save((checkpoint(1),), ())
    await process.settle()
    before = server.traffic.requests
    freezing = replace(checkpoint(1), step=CheckpointStep.FREEZING)
    await process.journal.save((freezing,), ())
    asyncio.get_running_loop().call_soon(
        process.projection.enqueue_order, freezing.uid, Freeze(freezing.uid, freezing.workload)
    )
    await asyncio.sleep(0)
    await process.settle()
    await process.crash()
    assert server.traffic.requests - before == 2, "the log, and the object"
    status = server.objects[CHECKPOINTS, *object_key_of(freezing, SYSTEM)]["status"]
    assert (status["step"], status["order"]["number"]) == ("Freezing", 1)
    assert status["order"]["order"]["type"] == "Freeze"


async def begun(server: FakeApi, **status: object) -> tuple[Process, Checkpoint]:
    """A process that is gone, and the Checkpoint that it has created with its first order: no step stands there yet."""
    process = Process(server, "process")
    await process.journal.load()
    freezing = checkpoint(1, CheckpointStep.FREEZING)
    await process.crash()  # before anything is carried over
    await process.journal.save((freezing,), ())
    body = to_object(freezing, SYSTEM)
    body["spec"]["firstOrder"] = {"number": 1, "order": {"type": "Freeze"}}
    server.objects[CHECKPOINTS, *object_key_of(freezing, SYSTEM)] = body | {"status": status}
    return process, freezing


async def test_order_after_a_crash_gets_no_number_that_an_agent_may_have_answered() -> None:
    server = purged_server()
    answer = {"number": 1, "outcome": {"type": "Frozen"}}
    _, freezing = await begun(server, answer=answer)
    key = (CHECKPOINTS, *object_key_of(freezing, SYSTEM))
    again = Process(server, "again")
    assert set(by_uid(await again.journal.load())) == {freezing.uid}
    number = again.projection.enqueue_order(freezing.uid, Freeze(freezing.uid, freezing.workload))
    await again.settle()
    await again.crash()
    assert number == 2
    status = server.objects[key]["status"]
    assert (status["step"], status["order"]["number"], status["answer"]) == ("Freezing", 2, answer)


@pytest.mark.parametrize("damage", ["lost", "unreadable", "forgotten"])
async def test_first_order_whose_record_is_lost_is_taken_up_by_its_spec(damage: str) -> None:
    """It is frozen by it perhaps, and nobody else would ever thaw it."""
    server = purged_server()
    process, freezing = await begun(server)
    if damage == "lost":
        del server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME]
    elif damage == "unreadable":
        server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME]["binaryData"] = {"entries.json.zst": "!"}
    else:
        await process.journal.save((), (freezing,))
    again = Process(server, "again")
    found = by_uid(await again.journal.load())
    await again.crash()
    assert found == ({} if damage == "forgotten" else {freezing.uid: freezing})


async def test_a_snapshot_outlives_its_record_and_a_failure_does_not() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    ready, failed = checkpoint(1, CheckpointStep.READY), checkpoint(2, CheckpointStep.FAILED)
    await process.journal.save((ready, failed), ())
    await process.journal.save((), (ready, failed))
    await process.settle()
    await process.crash()
    assert (CHECKPOINTS, *object_key_of(ready, SYSTEM)) in server.objects
    assert (CHECKPOINTS, *object_key_of(failed, SYSTEM)) not in server.objects
    again = Process(server, "again")
    assert await again.journal.load() == ()
    await again.crash()


@pytest.mark.parametrize("is_forgotten", [True, False])
async def test_what_was_deleted_since_the_log_was_written_does_not_come_back(is_forgotten: bool) -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    await process.journal.save((READY,), ())
    await process.settle()
    if is_forgotten:
        await process.journal.save((), (READY,))
        await process.settle()
    await process.crash()
    assert server.objects.pop((CHECKPOINTS, *object_key_of(READY, SYSTEM)))
    again = Process(server, "again")
    assert await again.journal.load() == ()
    await again.settle()
    await again.crash()
    assert {kind for kind, _, _ in server.objects} == {CONFIG_MAPS}


async def test_checkpoint_that_its_eviction_waits_for_is_loaded_from_the_log_alone() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    hold = replace(HOLD, step=HoldStep.HOLDING, checkpoints=(READY.uid,))
    await process.crash()  # before anything is carried over
    await process.journal.save((READY, hold), ())
    again = Process(server, "again")
    assert set(by_uid(await again.journal.load())) == {READY.uid, hold.uid}
    await again.crash()


async def test_nothing_is_written_any_more_for_what_is_let_go() -> None:
    server = purged_server()
    process = Process(server, "process")
    await process.journal.load()
    await process.journal.save((READY, checkpoint(2)), ())
    await process.settle()
    key = (CHECKPOINTS, *object_key_of(READY, SYSTEM))
    process.projection.stop_writing(READY.uid)
    server.objects.pop(key)
    for records, forgotten in (((READY,), ()), ((), (READY,)), ((checkpoint(2),), ())):
        await process.journal.save(records, forgotten)
        await process.settle()
    with pytest.raises(KeyError):
        process.projection.enqueue_order(READY.uid, Freeze(READY.uid, READY.workload))
    await process.crash()
    assert key not in server.objects
    assert not process.projection._let_go


@pytest.mark.parametrize(
    ("derived", "uid"), [("true", pod_uid(1)), (None, pod_uid(1)), ("false", pod_uid(1)), ("true", "its successor")]
)
async def test_job_owns_the_checkpoints_of_its_own_id_and_no_others(derived: str | None, uid: str) -> None:
    annotations = {names.ID: "md"} | ({names.DERIVED_ID: derived} if derived else {})
    owner = OwnerReference("batch/v1", "Job", "md", "job-uid", controller=True)
    pod = Pod(Metadata("md-1", "bio", uid, annotations=annotations, owner_references=(owner,)))
    server = purged_server()
    projection = Projection(server, SYSTEM, owners=OwnerReferences(filled(pod)).owner_references_for)
    task = asyncio.create_task(projection.run())
    projection.write((checkpoint(1), checkpoint(2)), ())
    await projection.wait_flushed()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    owned, other = (server.objects[CHECKPOINTS, *object_key_of(checkpoint(one), SYSTEM)]["metadata"] for one in (1, 2))
    expected = [{"apiVersion": "batch/v1", "kind": "Job", "name": "md", "uid": "job-uid"}]
    assert owned.get("ownerReferences", []) == (expected if (derived, uid) == ("true", POD_UID) else [])
    assert "ownerReferences" not in other, "its pod is gone"
    assert owned["finalizers"] == other["finalizers"] == [names.SNAPSHOT_CLEANUP]


@pytest.mark.parametrize(
    ("marked", "uid"), [("RuntimeDefault", pod_uid(1)), (None, pod_uid(1)), ("RuntimeDefault", "its successor")]
)
async def test_a_checkpoint_says_which_seccomp_profile_its_pod_got_by_default(marked: str | None, uid: str) -> None:
    """By that the webhook decides whether a pod that restores the snapshot gets it, too."""
    annotations = {names.SECCOMP_DEFAULTED: marked} if marked else {}
    server = purged_server()
    marks = OwnerReferences(filled(Pod(Metadata("md-1", "bio", uid, annotations=annotations)))).marks_for
    projection = Projection(server, SYSTEM, marks=marks)
    task = asyncio.create_task(projection.run())
    projection.write((checkpoint(1),), ())
    await projection.wait_flushed()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    metadata = server.objects[CHECKPOINTS, *object_key_of(checkpoint(1), SYSTEM)]["metadata"]
    expected = {names.SECCOMP_DEFAULTED: marked} if marked and uid == POD_UID else None
    assert metadata.get("annotations") == expected


async def test_what_others_write_among_our_objects_is_passed_over() -> None:
    server = purged_server()
    body = to_object(checkpoint(1), SYSTEM)
    server.objects[CHECKPOINTS, "bio", "by-hand"] = {**body, "status": {}}
    await server.patch(CHECKPOINTS, "by-hand", "bio", {"metadata": {"name": "by-hand"}})
    process = Process(server, "process")
    assert await process.journal.load() == ()
    await process.crash()
