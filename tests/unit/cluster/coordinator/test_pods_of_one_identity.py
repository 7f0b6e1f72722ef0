"""Pods that run under one identity: the later one is refused in words, and stays refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from cedana_sched.adapter.contract import Ended, Preempted, Starting
from cedana_sched.cluster.coordinator import identity_rivals
from cedana_sched.cluster.coordinator.identity_rivals import Rivals
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod, PodSpec, PodStatus
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint, KnownSpec, KnownStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import AfterCommit, Signal, Victim, WorkloadRef
from cedana_sched.model.records import CheckpointStep
from cedana_sched_webhooks.pod_mutations import LONGEST_REASON
from tests.unit.cluster.coordinator.filled_mirrors import filled

SAID = "md/0 is already run by a; give each an id of its own"


def pod(
    name: str,
    started: str | None = None,
    *,
    phase: str = "Running",
    index: int = 0,
    node: str = "n1",
    deleted: bool = False,
    refused: str | None = None,
) -> Pod:
    annotations = {names.ID: "md", names.INDEX: str(index)} | ({names.NOT_PROTECTED: refused} if refused else {})
    metadata = Metadata(
        name=name,
        namespace="bio",
        uid=f"uid-of-{name}",
        annotations=annotations,
        owner_references=(OwnerReference("batch/v1", "Job", f"job-of-{name}", f"job-uid-{name}", controller=True),),
        creation_timestamp="2026-05-01T12:00:00Z",
        deletion_timestamp="2026-05-01T13:00:00Z" if deleted else None,
    )
    return Pod(
        metadata,
        PodSpec(node_name=node),
        PodStatus(phase=phase, start_time=started or f"2026-05-01T12:0{ord(name) - 97}:00Z"),
    )


def saved(
    of: str, step: CheckpointStep, after_commit: AfterCommit = AfterCommit.STOP, *, eviction_cancelled: bool = False
) -> KnownCheckpoint:
    spec = KnownSpec(IdentitySpec("md"), pod_ref=PodRef(f"uid-of-{of}", node_name="n1"), after_commit=str(after_commit))
    status = KnownStatus(step=step, eviction_cancelled=eviction_cancelled)
    return KnownCheckpoint(Metadata(name="c1", namespace="bio"), spec, status)


class World:
    def __init__(self, *pods: Pod, checkpoints: tuple[KnownCheckpoint, ...] = ()) -> None:
        self.informer = filled(*pods)
        self.patches: list[tuple[str, Object]] = []
        self.told: list[ObjectEvent] = []
        self.rivals = Rivals(cast("Api", self), self.informer, filled(*checkpoints), cast("EventRecorder", self))

    async def patch(self, resource: Any, name: str, namespace: str, patch: Object, *, subresource: None) -> None:
        del resource, namespace, subresource
        self.patches.append((name, patch))

    def record_event(self, event: ObjectEvent) -> None:
        self.told.append(event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.rivals.run())
        try:
            await self.settle()
            yield
            await self.settle()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def victim(self, name: str) -> Victim:
        workload = WorkloadRef(f"uid-of-{name}", "bio", name, "n1")
        signal = Signal("s", "kueue", (Victim(workload, Identity("bio", "md")),), "Preempted", 0.0)
        screened = self.rivals.add_rivals_to_report(Preempted(signal))
        assert isinstance(screened, Preempted)
        return screened.signal.victims[0]

    def start(self, name: str) -> Starting:
        starting = Starting(WorkloadRef(f"uid-of-{name}", "bio", name, "n1"), Identity("bio", "md"))
        screened = self.rivals.add_rivals_to_report(starting)
        assert isinstance(screened, Starting)
        return screened


def test_only_the_later_one_is_refused_when_it_is_preempted() -> None:
    world = World(pod("a"), pod("b"))
    assert world.victim("a").refused is None
    assert world.victim("b").refused == SAID


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("a", deleted=True), id="it is being deleted"),
        pytest.param(pod("a", phase="Failed"), id="it has failed"),
        pytest.param(pod("a", index=1), id="it is another replica"),
        pytest.param(pod("a", node=""), id="it has no node"),
        pytest.param(pod("a", refused="x"), id="it has no right to the identity itself"),
        pytest.param(pod("a", "2026-05-01T12:30:00Z"), id="it came later"),
    ],
)
def test_who_is_alone_is_protected(other: Pod) -> None:
    world = World(other, pod("b"))
    assert world.victim("b").refused is None
    assert world.start("b").rival is None


def test_who_starts_beside_another_hears_of_whom() -> None:
    rival = World(pod("a"), pod("b", phase="Pending")).start("b").rival
    assert rival == WorkloadRef("uid-of-a", "bio", "a", "n1")


@pytest.mark.parametrize("step", [CheckpointStep.DUMPING, CheckpointStep.READY])
def test_who_is_being_saved_makes_room(step: CheckpointStep) -> None:
    assert World(pod("a"), pod("b"), checkpoints=(saved("a", step),)).victim("b").refused is None


@pytest.mark.parametrize(
    "checkpoint",
    [
        pytest.param(saved("a", CheckpointStep.DUMPING, AfterCommit.LEAVE_RUNNING), id="its backup is in flight"),
        pytest.param(saved("a", CheckpointStep.READY, AfterCommit.LEAVE_RUNNING), id="it has a periodic snapshot"),
        pytest.param(saved("a", CheckpointStep.READY, eviction_cancelled=True), id="it was not evicted after all"),
        pytest.param(saved("a", CheckpointStep.FAILED), id="it could not be saved"),
    ],
)
def test_pod_that_runs_on_after_its_snapshot_makes_no_room(checkpoint: KnownCheckpoint) -> None:
    """The successor of the first would continue the work of the other one."""
    world = World(pod("a"), pod("b"), checkpoints=(checkpoint,))
    assert world.victim("b").refused == SAID
    assert world.victim("a").refused is None


def test_nobody_fills_records_by_what_is_said_on_a_pod() -> None:
    said = World(pod("a", refused="x" * 30_000)).victim("a").refused
    assert said == "x" * LONGEST_REASON


async def test_it_is_said_on_the_pod_and_its_owner_and_stays() -> None:
    world = World(pod("a"))
    async with world.running():
        world.informer._put(pod("b"))
        await world.settle()
    assert world.patches == [("b", {"metadata": {"uid": "uid-of-b", "annotations": {names.NOT_PROTECTED: SAID}}})]
    assert [(one.involved["kind"], one.warning) for one in world.told] == [("Pod", True), ("Job", True)]
    assert world.told[0].message == f"b is not protected: {SAID}"

    world.informer._put(pod("b", refused=SAID))
    world.informer._drop(pod("a"))
    assert world.victim("b").refused == SAID, "what it has done beside the first is not the first's work"


async def test_two_that_came_at_one_moment_are_one_first_and_one_second() -> None:
    at = "2026-05-01T12:00:00Z"
    world = World(pod("b", at), pod("a", at))
    assert [world.victim(name).refused is None for name in "ab"] == [True, False]
    async with world.running():
        pass
    assert [name for name, _ in world.patches] == ["b"]


def test_other_reports_pass() -> None:
    ended = Ended("uid-of-a", "it ended")
    assert World(pod("a")).rivals.add_rivals_to_report(ended) == ended


async def test_pods_of_one_identity_are_not_compared_for_each_pair_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant decides how many there are, and a coordinator that begins to lead finds all of them at once."""
    compared = 0
    order_of = identity_rivals._start_order

    def count_order(one: Pod) -> tuple[bool, str, str, str]:
        nonlocal compared
        compared += 1
        return order_of(one)

    monkeypatch.setattr(identity_rivals, "_start_order", count_order)
    world = World(*(pod(f"p{number}", "2026-05-01T12:30:00Z") for number in range(100)))
    async with world.running():
        pass
    assert 100 <= compared <= 10 * 100**2
    assert world.patches
