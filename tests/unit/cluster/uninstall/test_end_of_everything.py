"""The uninstallation ends what is in flight, and leaves nothing of its own behind, however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, ClassVar, Self

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import leading_coordinator
from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.cluster.uninstall import main, waiting_restores
from cedana_sched.cluster.uninstall.records_in_flight import StillInFlightError
from cedana_sched.cluster.uninstall.waiting_restores import WaitingRestores
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched.model.records import CheckpointStep, HoldStep, Record, Restore, RestoreStep
from cedana_sched.testing import FakeApi
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD

FAR = 4_000_000_000.0
"""Epoch seconds."""
BACKING_OFF = replace(checkpoint(1, CheckpointStep.WAITING), adapter="kept", not_before=FAR, deadline=FAR)
"""Only the cancellation of its preemption ends it, without a word of its agent."""
HOLDING = replace(
    HOLD,
    adapter="kept",
    step=HoldStep.HOLDING,
    deadline=FAR,
    checkpoints=(BACKING_OFF.uid,),
    verdicts={},
    reasons={},
    release_group=None,
)
WAITING = Restore(
    uid="restore.w1",
    adapter="kept",
    workload=BACKING_OFF.workload,
    identity=BACKING_OFF.identity,
    policy=BACKING_OFF.policy,
    step=RestoreStep.WAITING,
    created_at=BACKING_OFF.created_at,
    deadline=FAR,
)


class KeptAdapter:
    """Notes what is released, and whether it is withdrawn."""

    name = "kept"
    released: ClassVar[list[Release]] = []
    withdrawn_after: ClassVar[list[int]] = []
    """Number of releases before each withdrawal."""

    @classmethod
    def connect(cls, _: ClusterAccess) -> Self:
        cls.released, cls.withdrawn_after = [], []
        return cls()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def reports(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def release(self, release: Release) -> None:
        self.released.append(release)

    async def withdraw(self) -> None:
        self.withdrawn_after.append(len(self.released))


class Uninstallation:
    """A cluster with records in flight, on a node whose agent never answers."""

    def __init__(self, *records: Record) -> None:
        self.server = FakeApi()
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        labels = {names.NODE_PREPARED: "true"}
        self.server.put(NODES, {"metadata": {"name": "node-1", "uid": "n", "labels": labels}, "status": ready})
        pod = {"name": BACKING_OFF.workload.name, "namespace": "bio", "uid": BACKING_OFF.workload.uid}
        metadata = {**pod, "labels": {names.PROTECTED: "true"}}
        self.server.put(PODS, {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}})
        kinds = {"PreemptionHold": PREEMPTION_HOLDS, "Checkpoint": CHECKPOINTS, "Restore": RESTORES}
        for record in records:
            body = to_object(record, SYSTEM)
            body["metadata"]["uid"] = f"uid-{record.uid}"
            self.server.put(kinds[type(record).__name__], body)
        self.others = asyncio.all_tasks()

    async def run(self, seconds: float) -> None:
        configuration = CoordinatorConfiguration(namespace=SYSTEM, adapters=("kept",))
        until = time.monotonic() + seconds
        await main._end_everything_in_flight(self.server, configuration, "me", 3600.0, until)

    def left_tasks(self) -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() - self.others}


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[WaitingRestores]:
    """Get what refuses restores, once it has a timer; the timer ends later than the uninstallation."""
    made: asyncio.Queue[WaitingRestores] = asyncio.Queue()

    class Announced(WaitingRestores):
        def _set_timer(self, uid: str) -> None:
            super()._set_timer(uid)
            made.put_nowait(self)

    monkeypatch.setattr(main, "WaitingRestores", Announced)
    monkeypatch.setattr(waiting_restores, "START_SECONDS", -3600.0)
    monkeypatch.setattr(leading_coordinator, "load", lambda _: KeptAdapter)
    return made


async def test_every_hold_is_released_before_the_adapters_are_withdrawn() -> None:
    cluster = Uninstallation(BACKING_OFF, HOLDING)
    async with asyncio.timeout(60):
        await cluster.run(50)
    (release,) = KeptAdapter.released
    assert Verdict.COMMITTED not in release.verdicts.values()
    assert KeptAdapter.withdrawn_after == [1]
    assert cluster.left_tasks() == set()


async def test_nothing_is_left_if_something_does_not_end_in_time(waiting: asyncio.Queue[WaitingRestores]) -> None:
    cluster = Uninstallation(WAITING)
    async with asyncio.timeout(60):
        with pytest.raises(ExceptionGroup) as raised:
            await cluster.run(0.2)
    (error,) = raised.value.exceptions
    assert isinstance(error, StillInFlightError)
    assert "Restore of pod bio/md-1" in error.message
    assert KeptAdapter.withdrawn_after == [], "the scheduler may still need an answer"
    assert cluster.left_tasks() == set()
    assert waiting.get_nowait()._timers == {}


async def test_nothing_is_left_if_another_coordinator_leads(waiting: asyncio.Queue[WaitingRestores]) -> None:
    cluster = Uninstallation(WAITING)
    running = asyncio.create_task(cluster.run(50))
    async with asyncio.timeout(60):
        refuses = await waiting.get()
        assert refuses._timers
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert KeptAdapter.withdrawn_after == []
    assert cluster.left_tasks() == set()
    assert refuses._timers == {}
