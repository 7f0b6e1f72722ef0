"""An adapter whose scheduler is not installed takes nobody down with it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from cedana_sched.adapter.cluster import ClusterAdapter
from cedana_sched.cluster.coordinator import adapters
from cedana_sched.cluster.coordinator.adapters import AdapterMetrics, OwnDeployment, keep_running
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, RefusedByServerError
from cedana_sched.kube.events import EventRecorder, Happening
from cedana_sched.kube.objects import Metadata, PartialObject


class Adapter:
    """Ends as it is told to, then runs."""

    def __init__(self, *ends: Exception) -> None:
        self._ends = list(ends)
        self.runs = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())

    async def _watch(self) -> None:
        if self._ends:
            raise self._ends.pop(0)
        self.runs.set()
        await asyncio.Event().wait()


class Told:
    """The API server and the Events, as far as they are asked."""

    def __init__(self) -> None:
        self.events: list[Happening] = []
        self.up: list[float | None] = []
        """What the metric says of the adapter at each Event."""
        self.registry = CollectorRegistry()

    async def get(self, *_: Any, into: Any) -> PartialObject:
        return PartialObject(Metadata(name="c", namespace="ours", uid="u"))

    def tell(self, happening: Happening) -> None:
        self.events.append(happening)
        self.up.append(self.registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "FIRST_PAUSE_SECONDS", 0.0)


def kept(adapter: Adapter, told: Told, registry: CollectorRegistry) -> asyncio.Task[None]:
    told.registry = registry
    deployment = OwnDeployment(cast("Api", told), cast("EventRecorder", told), "ours", "c")
    running = keep_running("kueue", cast("ClusterAdapter", adapter), deployment, AdapterMetrics(registry))
    return asyncio.create_task(running)


async def test_an_absent_scheduler_is_told_and_tried_again() -> None:
    absent = AbsentError("GET /apis/kueue.x-k8s.io/v1beta2/workloads: 404", status=404)
    adapter, told, registry = Adapter(absent, absent), Told(), CollectorRegistry()
    task = kept(adapter, told, registry)
    await adapter.runs.wait()
    assert [event.reason for event in told.events] == ["SchedulerNotFound"] * 2
    (event, _) = told.events
    assert "kueue is enabled" in event.message
    assert "workloads: 404" in event.message
    assert event.involved == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "c",
        "namespace": "ours",
        "uid": "u",
    }
    assert told.up == [0, 0]
    assert registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}) == 1
    assert not task.done()
    task.cancel()


async def test_an_adapter_that_is_refused_is_told_and_tried_again() -> None:
    refused = RefusedByServerError("no rights", status=403)
    adapter, told, registry = Adapter(refused), Told(), CollectorRegistry()
    task = kept(adapter, told, registry)
    await adapter.runs.wait()
    assert [(event.reason, "no rights" in event.message) for event in told.events] == [("SchedulerNotFollowed", True)]
    assert told.up == [0]
    assert registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}) == 1
    task.cancel()


async def test_a_defect_of_one_adapter_is_said_and_ends_nobody_else() -> None:
    """A tenant's object may show it: at each start of the coordinator it would end all schedulers' adapters."""
    adapter, told, registry = Adapter(RuntimeError("a defect"), ValueError("another")), Told(), CollectorRegistry()
    task = kept(adapter, told, registry)
    await adapter.runs.wait()
    assert [event.reason for event in told.events] == ["AdapterFailed"] * 2
    assert "RuntimeError('a defect')" in told.events[0].message
    assert told.up == [0, 0]
    assert registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}) == 1
    task.cancel()


async def test_an_adapter_is_cancelled_as_any_task() -> None:
    adapter = Adapter()
    task = kept(adapter, Told(), CollectorRegistry())
    await adapter.runs.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
