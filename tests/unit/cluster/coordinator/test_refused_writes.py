"""Whatever the API server refuses, and however often: in the end every object says its record, and no order is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from cedana_sched.adapter.contract import Preempted
from cedana_sched.cluster.coordinator import projection
from cedana_sched.cluster.coordinator.metrics import CoordinatorMetrics
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents, OrderSupersededError
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import object_key_of, resource_of, to_object
from cedana_sched.cluster.coordinator.rejected_writes import RejectedWrites
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.coordinator.core import Core, Event, Persist, Reported, Send, record_uid_of
from cedana_sched.coordinator.effects import Effects, is_same
from cedana_sched.coordinator.tasks import Tasks
from cedana_sched.kube.errors import ApiUnavailableError, RefusedByServerError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import CHECKPOINTS, PODS, PREEMPTION_HOLDS
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Abort, Dump, Freeze, Frozen, Kill, Killed, Order, Outcome, Thaw, Thawed
from cedana_sched.model.preemption import Signal
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, Record
from cedana_sched.testing import FakeApi, Traffic
from cedana_sched.testing.traffic import REFUSALS
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.purged_server import purged_server
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint, pod_uid
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD
from tests.unit.coordinator.core.core_builders import victim
from tests.unit.coordinator.virtual_clock import VirtualClock


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.002)


class Cluster:
    """A projection, the coordinator's side of orders, and the agents of two nodes, over one API server."""

    def __init__(self, server: FakeApi) -> None:
        self.server = server
        self.projection = Projection(server, SYSTEM)
        self.agents = ObjectAgents(server, self.projection, cast("Any", filled()))
        self.obeyed: list[Order] = []
        self._feeds = [OrderFeed(server, node, self._perform) for node in ("node-1", "n1")]

    async def _perform(self, order: Order) -> AsyncIterator[Outcome]:
        self.obeyed.append(order)
        match order:
            case Freeze(uid):
                yield Frozen(uid)
            case Kill(uid):
                yield Killed(uid)
            case Thaw(uid):
                yield Thawed(uid)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            works = (self.projection.run(), self.agents.run(), *(feed.run() for feed in self._feeds))
            tasks = [group.create_task(work) for work in works]
            for feed in self._feeds:
                await feed.wait_synced()
            yield group
            for task in tasks:
                task.cancel()

    async def answered(self, node: str, order: Order) -> Outcome:
        return [outcome async for outcome in self.agents.perform(node, order)][-1]


async def _until(holds: Callable[[], bool], otherwise: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - it lets everybody else go on
                await asyncio.sleep(0)
    except TimeoutError:
        pytest.fail(otherwise)


def _shows(server: FakeApi, record: Record) -> bool:
    body = server.objects.get((resource_of(record), *object_key_of(record, SYSTEM)))
    wanted = to_object(record, SYSTEM)["status"]
    return body is not None and {name: body["status"].get(name) for name in wanted} == wanted


@pytest.mark.parametrize("status", REFUSALS)
async def test_order_whose_write_is_refused_arrives_all_the_same(status: int) -> None:
    cluster = Cluster(purged_server())
    freezing = checkpoint(1, CheckpointStep.FREEZING)
    order = Freeze(freezing.uid, freezing.workload)
    async with cluster.running() as group:
        cluster.server.traffic.refusing[CHECKPOINTS] = status
        cluster.projection.write((freezing,), ())
        answer = group.create_task(cluster.answered("node-1", order))
        await _until(lambda: cluster.server.traffic.attempts.total() >= 3, "what was refused is not written again")
        assert cluster.projection.pending_records().records == (freezing,), "what was refused counted as written"
        cluster.server.traffic.refusing.clear()
        assert await answer == Frozen(freezing.uid)
        await cluster.projection.wait_flushed()
    assert _shows(cluster.server, freezing)
    assert cluster.obeyed == [order]


@pytest.mark.parametrize("seed", range(60))
async def test_every_object_says_its_record_and_every_order_was_seen(seed: int) -> None:
    dice = Random(seed)
    server = purged_server(Traffic(dice, fault_rate=0.5))
    cluster = Cluster(server)
    records: dict[str, Record] = {}
    gone: list[Record] = []
    given: dict[str, Order] = {}
    async with cluster.running() as group:
        answers: dict[str, asyncio.Task[Outcome | None]] = {}
        for _ in range(dice.randrange(5, 25)):
            one: Record = checkpoint(dice.randrange(5), dice.choice([CheckpointStep.FREEZING, CheckpointStep.KILLING]))
            if dice.random() < 0.2:
                one = replace(HOLD, step=dice.choice(list(HoldStep)))
            if one.uid in records and dice.random() < 0.15:
                cluster.projection.write((), (record := records.pop(one.uid),))
                gone.append(record)
                given.pop(record.uid, None)
                continue
            if isinstance(one, Checkpoint) and one.uid in {record.uid for record in gone}:
                continue  # a uid is never used twice
            records[one.uid] = one
            cluster.projection.write((one,), ())
            gone = [record for record in gone if record.uid != one.uid]
            if isinstance(one, Checkpoint):
                kinds: list[Order] = [Kill(one.uid, one.workload), Thaw(one.uid, one.workload)]
                order = dice.choice(kinds)
                if one.step is CheckpointStep.FREEZING:
                    order = Freeze(one.uid, one.workload)
                given[one.uid] = order
                answers[one.uid] = group.create_task(_until_answered(cluster, order, given))
            if dice.random() < 0.1 and (there := server.all_of(CHECKPOINTS)):
                victim_of_chance = dice.choice(there)["metadata"]
                server.remove(CHECKPOINTS, victim_of_chance["name"], victim_of_chance["namespace"])
            for _ in range(dice.randrange(30)):
                await asyncio.sleep(0)
        server.traffic.fault_rate = 0.0
        await cluster.projection.wait_flushed()
        outcomes = {uid: await task for uid, task in answers.items() if uid in given}
        await cluster.projection.wait_flushed()
    for record in records.values():
        assert _shows(server, record), record
    for record in gone:
        assert (resource_of(record), *object_key_of(record, SYSTEM)) not in server.objects
    for uid, order in given.items():
        assert order in cluster.obeyed
        assert outcomes[uid] is not None


async def _until_answered(cluster: Cluster, order: Order, given: dict[str, Order]) -> Outcome | None:
    """As the coordinator does: an order that is given up is given again, unless another one has taken its place."""
    while given.get(record_uid_of(order)) is order:
        with suppress(OrderSupersededError):
            return await cluster.answered("node-1", order)
        await asyncio.sleep(0)
    return None


_TERMINATING = b"""{"kind": "Status", "reason": "Forbidden", "message": "unable to create new content in namespace bio",
 "details": {"name": "c", "group": "sched.cedana.ai", "kind": "checkpoints", "causes": [
 {"reason": "NamespaceTerminating", "message": "namespace bio is being terminated", "field": "metadata.namespace"}]}}"""
_ABSENT = b"""{"kind": "Status", "reason": "NotFound", "message": "namespaces \\"bio\\" not found",
 "details": {"name": "bio", "kind": "namespaces"}}"""


@pytest.mark.parametrize("answer", [(403, _TERMINATING), (404, _ABSENT)])
async def test_records_of_a_deleted_namespace_are_not_written_again(answer: tuple[int, bytes]) -> None:
    """As a real API server answers: NamespaceLifecycle refuses what is created where nothing can be any more."""
    cluster = Cluster(purged_server())
    known, new = checkpoint(1), checkpoint(2)
    async with cluster.running():
        cluster.projection.write((known,), ())
        await cluster.projection.wait_flushed()
        cluster.server.traffic.gone_namespaces["bio"] = answer
        cluster.server.remove(CHECKPOINTS, object_key_of(known, SYSTEM)[1], "bio")
        cluster.projection.write((known, new, HOLD), ())
        await cluster.projection.wait_flushed()
        before = cluster.server.traffic.attempts.total()
        cluster.projection.write((), (known, new, HOLD))
        await cluster.projection.wait_flushed()
        assert cluster.server.traffic.attempts.total() - before <= 5, "they are written again and again"
    assert cluster.server.objects == {}


async def test_order_that_never_reached_the_server_is_written_again_when_the_core_repeats_it() -> None:
    """What the evidence of the lost `Freeze` did, over the real core, errands, projection and agents."""
    cluster = Cluster(purged_server())
    clock = VirtualClock()
    core = Core()
    events: list[Event] = []
    async with cluster.running() as group:
        tasks = Tasks(group)
        effects = Effects(tasks, core.registry, cluster.agents, {}, clock, events.append)

        def carry_out(event: Event) -> None:
            for instruction in core.handle(event, clock.now()):
                if isinstance(instruction, Persist):
                    cluster.projection.write(instruction.records, instruction.forget)
                elif isinstance(instruction, Send):
                    effects.run(instruction)

        cluster.server.traffic.refusing[CHECKPOINTS] = 403
        carry_out(Reported("kueue", Preempted(Signal("s", "kueue", (victim(pod_uid(1)),), "x", clock.now()))))
        await _until(lambda: cluster.server.traffic.attempts["create", CHECKPOINTS] >= 3, "it is not tried again")
        cluster.server.traffic.refusing.clear()
        await _until(lambda: bool(events), "the order is lost")
    assert [type(event) for event in events] == [Frozen]


async def test_agent_answers_before_its_checkpoint_has_a_status() -> None:
    cluster = Cluster(purged_server())
    freezing = checkpoint(1, CheckpointStep.FREEZING)
    key = (CHECKPOINTS, *object_key_of(freezing, SYSTEM))
    written = asyncio.Event()
    show = cluster.projection._write_object

    async def show_late(target: Any) -> None:
        if target.exists:
            await written.wait()
        await show(target)

    cluster.projection._write_object = show_late  # type: ignore[method-assign]
    async with cluster.running():
        cluster.projection.write((freezing,), ())
        assert isinstance(await cluster.answered("node-1", Freeze(freezing.uid, freezing.workload)), Frozen)
        assert set(cluster.server.objects[key]["status"]) == {"answer"}
        written.set()
        await cluster.projection.wait_flushed()
        assert cluster.server.objects[key]["status"]["step"] == CheckpointStep.FREEZING
    assert [type(order) for order in cluster.obeyed] == [Freeze], "the order that the status repeats is no other one"


async def test_order_that_somebody_took_out_of_its_object_is_written_again_when_it_is_repeated() -> None:
    cluster = Cluster(purged_server())
    aborting = checkpoint(1, CheckpointStep.ABORTING)
    order = Abort(aborting.uid, aborting.workload, aborting.identity, "why")  # our agents leave it unanswered
    async with cluster.running() as group:
        cluster.projection.write((aborting,), ())
        await cluster.answered("node-1", Freeze(aborting.uid, aborting.workload))
        waiting = group.create_task(cluster.answered("node-1", order))
        await asyncio.sleep(0)
        await cluster.projection.wait_flushed()
        _, name = object_key_of(aborting, SYSTEM)
        await cluster.server.patch(CHECKPOINTS, name, "bio", {"status": {"order": None}}, subresource="status")
        for _ in range(20):
            await asyncio.sleep(0)
        cluster.agents.repeat_order("node-1", order)
        await cluster.projection.wait_flushed()
        assert cluster.server.objects[CHECKPOINTS, "bio", name]["status"]["order"]["number"] == 2
        for _ in range(20):
            await asyncio.sleep(0)
        before = cluster.server.traffic.attempts.total()
        cluster.agents.repeat_order("node-1", order)
        await cluster.projection.wait_flushed()
        assert cluster.server.traffic.attempts.total() == before, "what stands is not written again"
        waiting.cancel()


async def test_object_that_somebody_deleted_is_made_again_with_its_order() -> None:
    cluster = Cluster(purged_server())
    killing = checkpoint(1, CheckpointStep.KILLING)
    async with cluster.running():
        cluster.projection.write((killing,), ())
        assert await cluster.answered("node-1", Kill(killing.uid, killing.workload)) == Killed(killing.uid)
        await cluster.projection.wait_flushed()
        _, name = object_key_of(killing, SYSTEM)
        cluster.server.remove(CHECKPOINTS, name, "bio")
        await _until(lambda: (CHECKPOINTS, "bio", name) in cluster.server.objects, "it is not made again")
        await cluster.projection.wait_flushed()
    assert _shows(cluster.server, killing)


@pytest.mark.parametrize("labels", [{names.ARCHIVED: "true"}, {names.NODE: "another"}, {names.NODE: None}])
async def test_labels_by_which_an_agent_finds_its_orders_are_put_right(labels: dict[str, str | None]) -> None:
    cluster = Cluster(purged_server())
    killing = checkpoint(1, CheckpointStep.KILLING)
    async with cluster.running():
        cluster.projection.write((killing,), ())
        await cluster.projection.wait_flushed()
        _, name = object_key_of(killing, SYSTEM)
        await cluster.server.patch(CHECKPOINTS, name, "bio", {"metadata": {"labels": labels}})
        wanted = to_object(killing, SYSTEM)["metadata"]["labels"]
        shown = cluster.server.objects
        await _until(
            lambda: shown[CHECKPOINTS, "bio", name]["metadata"]["labels"] == wanted, "its labels are not put right"
        )


async def test_what_is_forgotten_and_gone_is_not_made_again() -> None:
    cluster = Cluster(purged_server())
    ready = checkpoint(1, CheckpointStep.READY)
    async with cluster.running():
        cluster.projection.write((ready,), ())
        await cluster.projection.wait_flushed()
        _, name = object_key_of(ready, SYSTEM)
        cluster.server.traffic.refusing[CHECKPOINTS] = 403
        cluster.projection.write((), (ready,))
        await _until(lambda: cluster.server.traffic.attempts.total() >= 4, "it is not tried again")
        cluster.server.remove(CHECKPOINTS, name, "bio")
        cluster.server.traffic.refusing.clear()
        await cluster.projection.wait_flushed()
    assert (CHECKPOINTS, "bio", name) not in cluster.server.objects
    assert cluster.projection.pending_records().forgotten == ()


async def test_refused_objects_do_not_hold_up_the_others() -> None:
    cluster = Cluster(purged_server())
    cluster.server.traffic.refusing[PREEMPTION_HOLDS] = 403
    async with cluster.running():
        refused = [replace(HOLD, uid=f"s{number}") for number in range(2 * projection.WRITERS)]
        cluster.projection.write(tuple(refused), ())
        creations = cluster.server.traffic.attempts
        await _until(lambda: creations["create", PREEMPTION_HOLDS] >= len(refused), "refused ones keep the writers")
        cluster.projection.write((checkpoint(1),), ())
        await _until(lambda: bool(cluster.server.all_of(CHECKPOINTS)), "refused ones keep the writers")
    assert not cluster.server.all_of(PREEMPTION_HOLDS)


async def test_refusals_are_told() -> None:
    server = FakeApi()
    told: list[tuple[str, int]] = []
    one = Projection(
        server, SYSTEM, on_write_rejected=lambda record, error, first: told.append((record.uid, error.status))
    )
    running = asyncio.create_task(one.run())
    server.traffic.refusing[CHECKPOINTS] = 422
    one.write((checkpoint(1),), ())
    await _until(lambda: len(told) >= 2, "refusals are not told")
    assert set(told) == {("s.w1.1", 422)}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_dump_is_the_same_order_whatever_time_is_left() -> None:
    one = checkpoint(1)
    dump = Dump(one.uid, one.workload, one.identity, one.policy.compression, one.reason, one.adapter, 600.0)
    assert is_same(dump, replace(dump, timeout_seconds=30.0))
    assert not is_same(dump, replace(dump, adapter="another"))


class Told:
    """Who hears of refusals: the Events, and the metric."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self.registry = CollectorRegistry()
        refused = CoordinatorMetrics(self.registry).count_rejected_write
        self.refusals = RejectedWrites(cast("EventRecorder", self), refused)

    def record_event(self, event: ObjectEvent) -> None:
        self.events.append(event)

    def counted(self, kind: str, status: int) -> float | None:
        labels = {"kind": kind, "status": str(status)}
        return self.registry.get_sample_value("cedana_sched_record_writes_rejected_total", labels)


def test_refusal_is_an_event_where_a_person_can_mend_it() -> None:
    told, one = Told(), checkpoint(1)
    invalid = RefusedByServerError("spec.id: Invalid value", status=422)
    for is_first in (True, False):
        told.refusals.on_write_rejected(one, invalid, is_first)
    told.refusals.on_write_rejected(one, ApiUnavailableError("no answer"), True)
    (event,) = told.events
    pod = one.workload
    assert event.involved == PODS.reference(pod.name, pod.namespace, pod.uid)
    assert (event.reason, event.warning) == ("RecordWriteRejected", True)
    assert "spec.id: Invalid value" in event.message
    assert (told.counted("Checkpoint", 422), told.counted("Checkpoint", 0)) == (2, 1)


def test_refusal_of_a_hold_is_an_event_on_what_is_held() -> None:
    told = Told()
    told.refusals.on_write_rejected(HOLD, RefusedByServerError("no rights", status=403), True)
    told.refusals.on_write_rejected(replace(HOLD, held=None), RefusedByServerError("no rights", status=403), True)
    (event,) = told.events
    assert (event.involved["kind"], event.involved["name"], event.involved["uid"]) == ("Job", "md", "job-uid")
    assert told.counted("PreemptionHold", 403) == 2
