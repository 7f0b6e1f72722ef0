"""Every long-running part of every component goes on, whatever an API server answers, and follows it again.

One row for each part, one column for each answer: a part that is new here belongs into `PARTS`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import pytest
import structlog

from cedana_sched.adapter.contract import Preempted
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import redo_log, storage_probe
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.storage_probe import StorageProbe
from cedana_sched.cluster.node.facts import NodeFacts
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.component import secret_reconciler
from cedana_sched.component.callers import Callers
from cedana_sched.coordinator.core import Reported
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube import watching
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.resources import CHECKPOINT_STORAGES, CONFIG_MAPS, PODS
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Victim, WorkloadRef
from cedana_sched_volcano.extender import cached_pod_states
from cedana_sched_volcano.extender.address_secret import AddressKeeper
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_volcano.extender.metrics import Metrics as ExtenderMetrics
from cedana_sched_volcano.webhooks import VolcanoWebhooks
from cedana_sched_webhooks import schedulers
from cedana_sched_webhooks.caches import CacheInformers
from cedana_sched_webhooks.configuration import OwnCertificates
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.own_certificates import OwnCertificateKeeper
from cedana_sched_webhooks.schedulers import ReplicaAccess, keep_running
from cedana_sched_webhooks.tls import ServingCertificate
from tests.pauses import shorten_pauses
from tests.unit.kube.moody_api_server import MOODS, Mood, MoodyApiServer

Part = Callable[[Api, MoodyApiServer], AbstractAsyncContextManager[None]]

SYSTEM = "cedana-system"
JOURNAL = CONFIG_MAPS.path(SYSTEM, redo_log.LOG_NAME)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(secret_reconciler, "SHORTEST_WAIT_SECONDS", 0.002)
    monkeypatch.setattr(watching, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(schedulers, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(storage_probe, "PROBE_SECONDS", 0.01)
    if hasattr(cached_pod_states, "ABSENT_PAUSE_SECONDS"):
        monkeypatch.setattr(cached_pod_states, "ABSENT_PAUSE_SECONDS", 0.01)


_UNPREPARED = {
    "metadata": {"name": "unprepared", "namespace": "lab"},
    "spec": {"containers": [{"name": "main", "env": [{"name": "CEDANA_CHECKPOINT", "value": "sim"}]}]},
}


# -- the parts: each context runs one, and its end raises what the part ended by


@asynccontextmanager
async def _running(*works: Any) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def coordinator(api: Api, server: MoodyApiServer) -> AsyncIterator[None]:
    """With two adapters, a preemption to write down in the worst moment, and then a pod that no webhook has seen."""
    told = CoordinatorConfiguration(namespace=SYSTEM, adapters=("kueue", "volcano"))
    async with LeadingCoordinator(api, told, "me").run_coordinator() as coordinating:
        written = server.objects[JOURNAL]["metadata"]["resourceVersion"]
        victim = Victim(WorkloadRef("p", "lab", "p", "node-1"), Identity("lab", "sim"), CheckpointPolicy())
        preempted = Reported("kueue", Preempted(Signal("s", "kueue", (victim,), "Preempted", 1.0)))
        server.meanwhile = lambda: coordinating.post(preempted)
        yield
        coordinating.post(preempted)  # where it has begun in a mood, nothing is posted so far
        await server.until(lambda: server.objects[JOURNAL]["metadata"]["resourceVersion"] != written)
        server.put(PODS, _UNPREPARED)
        unprepared = PODS.path("lab", "unprepared")
        await server.until(lambda: server.objects[unprepared]["metadata"].get("labels") == {names.PROTECTED: "true"})


@asynccontextmanager
async def storages(api: Api, server: MoodyApiServer) -> AsyncIterator[None]:
    server.put(CHECKPOINT_STORAGES, {"metadata": {"name": "s"}, "spec": {"posix": {"path": "/snapshots"}}})
    path = CHECKPOINT_STORAGES.path(None, "s")
    async with _running(StorageProbe(api).run()):
        yield
        server.objects[path].pop("status", None)
        await server.until(lambda: "status" in server.objects[path])


@asynccontextmanager
async def events(api: Api, server: MoodyApiServer) -> AsyncIterator[None]:
    recorder = EventRecorder(api, "test")
    async with _running(recorder.run()):
        yield
        recorder.record_event(ObjectEvent(PODS.reference("p", "lab", "u"), "Held", "it is held"))
        await server.until(lambda: any("/events/" in path for path in server.objects))


def webhooks(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[None]:
    return _running(CacheInformers(api).run(), EvictionMarker(api, _now).run())


def certificates(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[None]:
    names = OwnCertificates(
        secret="c",  # noqa: S106  # its name
        mutating_configuration="m",
        validating_configuration="v",
    )
    metrics = Metrics()
    keeper = OwnCertificateKeeper(
        api,
        names,
        namespace=SYSTEM,
        service_names=("localhost",),
        serving=ServingCertificate(metrics),
        callers=Callers(),
        hooks={},
        metrics=metrics,
        now=_now,
    )
    return _running(keeper.run())


def volcano_webhooks(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[None]:
    return _running(keep_running(VolcanoWebhooks.connect(ReplicaAccess(api, PreemptionIndex()))))


def extender(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[None]:
    address = AddressKeeper(api, "e", SYSTEM, ExtenderMetrics().address_problems, _now)
    return _running(CachedPodStates(api).run(), address.run())


def agent(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[None]:
    feed = OrderFeed(api, "node-1", cast("Any", None))
    return _running(
        NodePods(api, "node-1", feed).run(), feed.run(), NodeFacts(api, "node-1").wait_marked_for_uninstall()
    )


async def _coordinate(leader: LeadingCoordinator) -> None:
    async with leader.run_coordinator():
        await asyncio.Event().wait()


PARTS: tuple[Part, ...] = (
    coordinator, storages, events, webhooks, certificates, volcano_webhooks, extender, agent
)  # fmt: skip
WATCHES = {
    "coordinator": 16,
    "storages": 1, "events": 0, "webhooks": 5, "certificates": 3, "volcano_webhooks": 2,
    "extender": 7, "agent": 4,
}  # fmt: skip
"""How many watches each keeps open."""
WRITES = {"coordinator": "configmaps"}
"""What each writes in the mood."""


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)


def _name(one: Part | Mood) -> str:
    return one.__name__ if callable(one) else str(one)


@pytest.mark.parametrize("mood", MOODS, ids=_name)
@pytest.mark.parametrize("part", PARTS, ids=_name)
async def test_what_runs_goes_on_and_follows_again(part: Part, mood: Mood) -> None:
    server = MoodyApiServer()
    with structlog.testing.capture_logs() as logs:
        async with server.serving() as api, part(api, server):
            count = WATCHES[_name(part)]
            await server.until(lambda: server.watching.total() == count)
            plurals = {key.partition("?")[0].rpartition("/")[2] for key in server.watching}
            server.fall_into(mood)
            await server.until(lambda: all(server.bad[plural] >= 3 for plural in plurals))
            if written := WRITES.get(_name(part)):
                await server.until(lambda: server.bad[written] >= 1)
            server.fall_into(None)
            await server.until(lambda: server.watching.total() == count)
    assert [one for one in logs if one["log_level"] == "error" and "exc_info" in one] == []


async def test_who_may_not_list_says_which_rule_is_missing() -> None:
    """What `/readyz` answers meanwhile, and what is in the log."""
    server = MoodyApiServer()
    told = CoordinatorConfiguration(namespace=SYSTEM)
    with structlog.testing.capture_logs() as logs:
        async with server.serving() as api:
            leader = LeadingCoordinator(api, told, "me")
            server.fall_into(403)
            running = asyncio.create_task(_coordinate(leader))
            await server.until(lambda: "lacks verbs [list, watch]" in (leader.unsynced_reason or ""))
            assert "resources [" in (leader.unsynced_reason or "")
            server.fall_into(None)
            await server.until(lambda: leader.unsynced_reason is None)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert [one for one in logs if "lacks verbs [list, watch] on resources [pods]" in str(one)]


@pytest.mark.parametrize("mood", MOODS, ids=_name)
@pytest.mark.parametrize("part", [one for one in PARTS if one not in {events, storages}], ids=_name)
async def test_what_starts_meanwhile_waits_and_begins(part: Part, mood: Mood) -> None:
    server = MoodyApiServer()
    server.fall_into(mood)

    async def runs() -> None:
        async with server.serving() as api, part(api, server):
            await server.until(lambda: server.watching.total() == WATCHES[_name(part)])

    running = asyncio.create_task(runs())
    await server.until(lambda: running.done() or server.bad.total() >= 12)
    server.fall_into(None)
    await running
