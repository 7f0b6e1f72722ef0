"""An order into a namespace that is gone ends at once, with a reason; a wrong uid of one that is there is corrected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.contract import Preempted
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import Event, NamespaceCorrected
from cedana_sched.coordinator.effects import is_same
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiUnavailableError, NamespaceGoneError
from cedana_sched.kube.resources import CHECKPOINTS, NAMESPACES, PODS, PREEMPTION_HOLDS, Resource
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    CheckpointFailed,
    DiscardCancelled,
    FindSnapshot,
    Freeze,
    Kill,
    Order,
    Outcome,
    RestoreFailed,
    RestoreSnapshot,
    SnapshotFound,
    SnapshotRemoved,
    Stage,
    StageFailed,
    StartCold,
)
from cedana_sched.model.preemption import Signal
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, RestoreStep
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import RESTORE
from tests.unit.cluster.coordinator.test_records_of_another_namespace import BEFORE, NOW, Server, of
from tests.unit.coordinator.core.core_builders import MD, ref, victim
from tests.unit.coordinator.shell_fakes import MemoryAdapter, MemoryListener

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("_always_looking")
FREEZING = checkpoint(2, CheckpointStep.FREEZING)
RETURNING = replace(RESTORE, step=RestoreStep.STAGING, snapshot=ref(1))


@pytest.fixture
def _always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedana_sched.cluster.coordinator.namespace_uid_check.CURRENT_SECONDS", 0.0)


class Strict(Server):
    """Makes no object in a namespace that is not there, as API servers do."""

    def __init__(self, uid: str | None) -> None:
        super().__init__(uid)
        self.first_answer_is_lost = False

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        namespace = body["metadata"]["namespace"]
        if namespace != SYSTEM and (NAMESPACES, "", namespace) not in self.objects:
            raise NamespaceGoneError(f'namespaces "{namespace}" not found', status=404)
        made = await super().create(resource, body, into=into)
        if self.first_answer_is_lost:
            self.first_answer_is_lost = False
            self.has(None)
            raise ApiUnavailableError("the answer was lost")
        return made

    def has_pod(self, name: str, uid: str) -> None:
        metadata = {"name": name, "namespace": "bio", "uid": uid, "resourceVersion": "1"}
        self.objects[PODS, "bio", name] = {"metadata": metadata, "spec": {"uid": "-"}}


class Side:
    """The coordinator's side of orders, over one API server."""

    def __init__(self, server: Server, corrected: Callable[[Event], None] = lambda _: None) -> None:
        self.projection = Projection(
            server, SYSTEM, on_namespace_corrected=lambda *given: corrected(NamespaceCorrected(*given))
        )
        self.agents = ObjectAgents(server, self.projection, cast("Any", filled()))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(self.projection.run())
            yield
            task.cancel()

    async def answered(self, order: Order, *, is_expected: bool = True) -> Outcome | None:
        """None: nobody answers; for an answer that is expected a busy machine has time."""
        try:
            async with asyncio.timeout(60 if is_expected else 0.3):
                return [outcome async for outcome in self.agents.perform("node-1", order)][-1]
        except TimeoutError:
            return None


GONE = f"the order cannot reach its node: it is of namespace bio with uid {BEFORE}, and now there is none of that name"
CHECKPOINT_UID, RESTORE_UID = FREEZING.uid, RETURNING.uid


@pytest.mark.parametrize(
    ("order", "outcome"),
    [
        (Freeze(CHECKPOINT_UID, FREEZING.workload), CheckpointFailed(CHECKPOINT_UID, GONE)),
        (Abort(CHECKPOINT_UID, FREEZING.workload, MD, "why"), Aborted(CHECKPOINT_UID)),
        (DiscardCancelled(CHECKPOINT_UID, MD), SnapshotRemoved(CHECKPOINT_UID)),
        (FindSnapshot(RESTORE_UID, MD), SnapshotFound(RESTORE_UID, problem=GONE)),
        (Stage(RESTORE_UID, RETURNING.workload, ref(1)), StageFailed(RESTORE_UID, GONE)),
        (RestoreSnapshot(RESTORE_UID, RETURNING.workload, ref(1)), RestoreFailed(RESTORE_UID, GONE)),
        # that nothing of it runs says its end alone
        (Kill(CHECKPOINT_UID, FREEZING.workload), None),
        (StartCold(RESTORE_UID, RETURNING.workload), None),
    ],
)
async def test_an_order_into_a_namespace_that_is_gone_ends_at_once(order: Order, outcome: Outcome | None) -> None:
    side = Side(Strict(None))
    async with side.writing():
        side.projection.write((of(FREEZING, BEFORE), of(RETURNING, BEFORE)), ())
        assert await side.answered(order, is_expected=outcome is not None) == outcome


@pytest.mark.parametrize(("noted", "is_over"), [(BEFORE, True), ("", False)])
async def test_where_an_agent_may_have_obeyed_only_the_namespaces_own_end_ends_an_order(
    noted: str, is_over: bool
) -> None:
    """Without its uid nobody knows whether it is only being deleted, and its pods with it."""
    server = Strict(BEFORE)
    side = Side(server)
    async with side.writing():
        side.projection.write((of(FREEZING, noted),), ())
        await side.projection.wait_flushed()
        server.has(None)
        side.projection.on_labels_seen(FREEZING.uid, None)
        outcome = await side.answered(Abort(FREEZING.uid, FREEZING.workload, MD, "why"), is_expected=is_over)
        assert (outcome is not None) == is_over


async def test_a_creation_whose_answer_was_lost_may_have_been_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    server = Strict(NOW)
    server.first_answer_is_lost = True
    side = Side(server)
    async with side.writing():
        side.projection.write((FREEZING,), ())
        order = Abort(FREEZING.uid, FREEZING.workload, MD, "why")
        assert await side.answered(order, is_expected=False) is None


class Leading:
    """A coordinator, but for its agents and its scheduler."""

    def __init__(self, server: Server) -> None:
        self.adapter, self.listener = MemoryAdapter(), MemoryListener()
        self.side = Side(server, self._post)
        self.coordinator = Coordinator(
            journal=ObjectJournal(server, SYSTEM, "me", self.side.projection),
            adapters={"kueue": self.adapter},
            agents=self.side.agents,
            clock=SystemClock(time.time),
            listener=self.listener,
        )

    def _post(self, event: Event) -> None:
        self.coordinator.post(event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.side.writing(), self.coordinator:
            yield

    def preempt(self, namespace_uid: str) -> None:
        one = victim("0a1b2c3d-0000-4000-8000-000000000001")
        one = replace(one, workload=replace(one.workload, namespace_uid=namespace_uid))
        self.adapter.report(Preempted(Signal("s1", "kueue", (one,), "Preempted", time.time())))

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110 - it lets everybody else go on; `writing` has the limit
            await asyncio.sleep(0)

    @property
    def records(self) -> dict[str, Any]:
        return {record.uid: record for record in self.coordinator._core.records()}


@pytest.mark.parametrize(("noted", "is_now"), [(BEFORE, None), (BEFORE, NOW), ("", None)])
async def test_an_eviction_in_a_namespace_that_is_gone_is_released_at_once(noted: str, is_now: str | None) -> None:
    leading = Leading(Strict(is_now))
    async with leading.running():
        leading.preempt(noted)
        await leading.until(lambda: leading.adapter.released)
        (release,) = leading.adapter.released
        (why,) = release.reasons.values()
        assert why.startswith("the order cannot reach its node: ")
        assert "bio" in why
        assert "CheckpointFailed" in leading.listener.told_kinds
        (saving,) = [one for one in leading.records.values() if isinstance(one, Checkpoint)]
        assert (saving.step, saving.unconfirmed) == (CheckpointStep.FAILED, False)


async def test_a_wrong_uid_is_corrected_where_the_pod_is_and_the_order_is_given_once() -> None:
    server = Strict(NOW)
    leading = Leading(server)
    server.has_pod("name-of-0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000001")

    def uids() -> set[str]:
        told = leading.records.values()
        return {one.namespace_uid if isinstance(one, PreemptionHold) else one.workload.namespace_uid for one in told}

    async with leading.running():
        leading.preempt(BEFORE)
        await leading.until(lambda: uids() == {NOW})
        await leading.side.projection.wait_flushed()
        shown = [one for (resource, _, _), one in server.objects.items() if resource in {CHECKPOINTS, PREEMPTION_HOLDS}]
        assert [one["spec"]["namespaceUID"] for one in shown] == [NOW, NOW]
        (order,) = [one["spec"]["firstOrder"] for one in shown if "firstOrder" in one["spec"]]
        assert order["number"] == 1
        assert not leading.adapter.released


def test_an_order_whose_namespace_was_corrected_is_the_same_order() -> None:
    before, now = (of(FREEZING, uid).workload for uid in (BEFORE, NOW))
    assert is_same(Freeze(FREEZING.uid, before), Freeze(FREEZING.uid, now))
    assert not is_same(Freeze(FREEZING.uid, before), Freeze(FREEZING.uid, replace(now, node="another")))
    assert not is_same(Freeze(FREEZING.uid, before), Kill(FREEZING.uid, before))
    assert is_same(FindSnapshot(RESTORE_UID, MD), FindSnapshot(RESTORE_UID, MD))
    assert not is_same(FindSnapshot(RESTORE_UID, MD), FindSnapshot(RESTORE_UID, MD, excluding=("x",)))
