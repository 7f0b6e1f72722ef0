"""An adapter whose scheduler is not installed takes nobody down with it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from cedana_sched.adapter.cluster_contract import ClusterAdapter
from cedana_sched.cluster.coordinator import adapter_supervision
from cedana_sched.cluster.coordinator.adapter_supervision import AdapterMetrics, OwnDeployment, keep_running
from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, RefusedByServerError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.watching import Informer, Watch
from tests.pauses import shorten_pauses
from tests.unit.kube.served_api import served

WORKLOADS = Resource("kueue.x-k8s.io/v1beta2", "Workload", "workloads")


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
        self.events: list[ObjectEvent] = []
        self.up: list[float | None] = []
        """What the metric says of the adapter at each Event."""
        self.registry = CollectorRegistry()

        self.told = asyncio.Event()
        self.is_up = asyncio.Event()

    async def get(self, *_: Any, into: Any) -> PartialObject:
        return PartialObject(Metadata(name="c", namespace="ours", uid="u"))

    def record_event(self, event: ObjectEvent) -> None:
        self.events.append(event)
        self.up.append(self.registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}))
        self.told.set()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)


class WatchingAdapter:
    """Keeps one watch."""

    def __init__(self, api: Api) -> None:
        self.informers = (Informer(Watch(api, WORKLOADS, PartialObject)),)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informers[0].run())


class Rights:
    """Answers lists and watches of Workloads, or refuses what the test says with this status."""

    def __init__(self, status: int, *, watch_alone: bool) -> None:
        self.status: int | None = status
        self._watch_alone = watch_alone
        self.asked_again = asyncio.Event()
        self._asked = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self._asked:
            self.asked_again.set()
        self._asked, is_watch = True, "watch" in request.query
        if self.status is not None and (is_watch or not self._watch_alone):
            return web.json_response({"message": "not for you", "reason": "Forbidden"}, status=self.status)
        if not is_watch:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response


class Metrics(AdapterMetrics):
    """Notes when an adapter is up."""

    def __init__(self, told: Told) -> None:
        super().__init__(told.registry)
        self._told = told

    def set_adapter_up(self, adapter: str, *, up: bool) -> None:
        super().set_adapter_up(adapter, up=up)
        if up:
            self._told.is_up.set()


def kept(adapter: Adapter | WatchingAdapter, told: Told, registry: CollectorRegistry) -> asyncio.Task[None]:
    told.registry = registry
    deployment = OwnDeployment(cast("Api", told), cast("EventRecorder", told), "ours", "c")
    running = keep_running("kueue", cast("ClusterAdapter", adapter), deployment, Metrics(told))
    return asyncio.create_task(running)


async def stopped(task: asyncio.Task[None]) -> None:
    """Nothing of it is left: neither it nor its connections."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done == {task}


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
    await stopped(task)


async def test_an_adapter_that_is_refused_is_told_and_tried_again() -> None:
    refused = RefusedByServerError("no rights", status=403)
    adapter, told, registry = Adapter(refused), Told(), CollectorRegistry()
    task = kept(adapter, told, registry)
    await adapter.runs.wait()
    assert [(event.reason, "no rights" in event.message) for event in told.events] == [("SchedulerNotWatched", True)]
    assert told.up == [0]
    assert registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}) == 1
    await stopped(task)


@pytest.mark.parametrize("watch_alone", [False, True])
async def test_a_watch_that_is_refused_for_ever_is_told_and_no_longer_once_it_is_not(
    monkeypatch: pytest.MonkeyPatch, *, watch_alone: bool
) -> None:
    """A role that lacks the kind, or the verb `watch` alone: the watch retries, and the adapter goes on running."""
    monkeypatch.setattr(adapter_supervision, "LOOK_SECONDS", 0.005)
    shorten_pauses(monkeypatch, 0.2)
    rights, told, registry = Rights(403, watch_alone=watch_alone), Told(), CollectorRegistry()
    async with served({"/apis/kueue.x-k8s.io/v1beta2/workloads": rights.answer}) as api:
        task = kept(WatchingAdapter(api), told, registry)
        async with asyncio.timeout(60):
            await told.told.wait()
            (event,) = told.events[:1]
            assert event.reason == "SchedulerNotWatched"
            assert "not for you" in event.message
            assert "lacks verbs [list, watch] on resources [workloads]" in event.message
            assert told.up[0] == 0
            rights.status = None
            told.is_up.clear()
            await told.is_up.wait()
        assert not task.done()
        await stopped(task)


async def test_an_api_server_that_does_not_answer_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    rights = Rights(503, watch_alone=False)
    async with served({"/apis/kueue.x-k8s.io/v1beta2/workloads": rights.answer}) as api:
        watch = Watch(api, WORKLOADS, PartialObject)
        informer = Informer(watch)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            await rights.asked_again.wait()
        assert watch.problem is not None
        assert informer.refusal_reason is None
        assert informer.unsynced_reason is not None
        await stopped(task)


async def test_a_defect_of_one_adapter_is_said_and_ends_nobody_else() -> None:
    """A tenant's object may show it: at each start of the coordinator it would end all schedulers' adapters."""
    adapter, told, registry = Adapter(RuntimeError("a defect"), ValueError("another")), Told(), CollectorRegistry()
    task = kept(adapter, told, registry)
    await adapter.runs.wait()
    assert [event.reason for event in told.events] == ["AdapterFailed"] * 2
    assert "RuntimeError('a defect')" in told.events[0].message
    assert told.up == [0, 0]
    assert registry.get_sample_value("cedana_sched_adapter_up", {"adapter": "kueue"}) == 1
    await stopped(task)


async def test_an_adapter_is_cancelled_as_any_task() -> None:
    adapter = Adapter()
    task = kept(adapter, Told(), CollectorRegistry())
    await adapter.runs.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class FailsInTheEnd(Adapter):
    """The API server goes away while it is cancelled."""

    async def _watch(self) -> None:
        try:
            await super()._watch()
        finally:
            raise RefusedByServerError("no rights", status=403)


async def test_an_adapter_that_fails_while_it_is_cancelled_is_not_started_again() -> None:
    """A replica that does not lead any more would follow the scheduler still."""
    adapter = FailsInTheEnd()
    task = kept(adapter, Told(), CollectorRegistry())
    await adapter.runs.wait()
    adapter.runs.clear()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done == {task}
    assert task.cancelled()
    assert not adapter.runs.is_set()
