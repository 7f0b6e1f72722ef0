"""Coordinator and agents meet in objects of a real API server; what lies behind the agents is scripted here."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.uninstall.checkpoint_finalizers import remove_finalizers
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.client import Api as ProductApi
from cedana_sched.kube.resources import NODES
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model import orders
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import HeldObject, Release, Signal, Verdict, Victim, WorkloadRef
from cedana_sched.model.records import Transfer
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient

pytestmark = pytest.mark.any_shape

_NODES = ("here", "there")


@dataclass
class _Scheduler:
    """Implements `Adapter`: preempts once, and remembers its releases."""

    signal: Signal
    released: asyncio.Queue[Release] = field(default_factory=asyncio.Queue)
    name: ClassVar[str] = "scripted"

    async def reports(self) -> AsyncIterator[Report]:
        yield Preempted(self.signal)
        await asyncio.Event().wait()

    async def release(self, release: Release) -> None:
        self.released.put_nowait(release)


class _Silent:
    def on_event(self, tell: PublishEvent) -> None:
        pass


async def _perform(order: orders.Order) -> AsyncIterator[orders.Outcome]:
    match order:
        case orders.Freeze(uid):
            yield orders.Frozen(uid)
        case orders.Dump(uid, _, identity):
            yield orders.Progress(uid, Transfer(read_bytes=1))
            yield orders.Committed(uid, SnapshotRef(identity, 1), Transfer(read_bytes=3 << 30))
        case orders.Kill(uid):
            yield orders.Killed(uid)
        case orders.ApplyRetention(uid):
            yield orders.RetentionApplied(uid)
        case _:
            raise AssertionError(f"nobody asked for {order}")


@asynccontextmanager
async def _background(*work: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def _api(cluster: Cluster) -> AsyncIterator[ProductApi]:
    async with ProductApi.open(str(cluster.kubeconfig)) as api:
        try:
            yield api
        finally:
            await remove_finalizers(api)  # nobody is there who would see them off with their namespace


@asynccontextmanager
async def _coordinating(api: ProductApi, namespace: str, scheduler: _Scheduler) -> AsyncIterator[None]:
    projection = Projection(api, namespace)
    nodes = Informer(Watch(api, NODES, Node))
    agents = ObjectAgents(api, projection, nodes)
    coordinator = Coordinator(
        journal=ObjectJournal(api, namespace, uuid.uuid4().hex, projection),
        adapters={scheduler.name: scheduler},
        agents=agents,
        clock=SystemClock(),
        listener=_Silent(),
    )
    async with _background(projection.run(), nodes.run(), agents.run()), coordinator:
        yield


_UIDS = uuid.UUID("5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37")


def _pod_uid(namespace: str, index: int) -> str:
    return str(uuid.uuid5(_UIDS, f"{namespace}-{index}"))


def _signal(namespace: str, victims: int) -> Signal:
    return Signal(
        uid=f"signal-of-{namespace}",
        adapter=_Scheduler.name,
        victims=tuple(
            Victim(
                WorkloadRef(
                    str(uuid.uuid5(_UIDS, f"{namespace}-{index}")), namespace, f"md-{index}", _NODES[index % 2]
                ),
                Identity(namespace, "md", index),
                CheckpointPolicy(),
                gang="md",
            )
            for index in range(victims)
        ),
        reason="InCohortReclamation",
        observed_at=SystemClock().now(),
        preemptor="ml/urgent",
        held=HeldObject("batch/v1", "Job", namespace, "md", "uid-of-md"),
    )


async def test_preemption_goes_its_way_through_objects(namespace: Namespace, cluster: Cluster, kinds: None) -> None:
    scheduler = _Scheduler(_signal(namespace.name, victims=20))
    async with _api(cluster) as api:
        feeds = [OrderFeed(api, node, _perform).run() for node in _NODES]
        async with _background(*feeds), _coordinating(api, namespace.name, scheduler), asyncio.timeout(patient(60)):
            release = await scheduler.released.get()

    assert set(release.verdicts.values()) == {Verdict.COMMITTED}
    [hold] = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
    assert hold["spec"]["heldObjectRef"]["name"] == "md"
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert len(checkpoints) == 20


async def test_coordinator_that_dies_at_any_instant_is_carried_on_by_the_next(
    namespace: Namespace, cluster: Cluster, kinds: None
) -> None:
    scheduler = _Scheduler(_signal(namespace.name, victims=10))
    async with _api(cluster) as api:
        feeds = [OrderFeed(api, node, _perform).run() for node in _NODES]
        async with _background(*feeds):
            for lifetime_seconds in (0.05, 0.1, 0.2, 0.3):
                async with _coordinating(api, namespace.name, scheduler):
                    await asyncio.sleep(lifetime_seconds)
            async with _coordinating(api, namespace.name, scheduler), asyncio.timeout(patient(60)):
                release = await scheduler.released.get()
                assert set(release.verdicts.values()) == {Verdict.COMMITTED}
                [hold] = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
                await namespace.wait(
                    API_VERSION,
                    "PreemptionHold",
                    hold["metadata"]["name"],
                    lambda body: body.get("status", {}).get("step") == "Released",
                )
                for checkpoint in await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name):
                    await namespace.wait(  # the objects of one turn are written side by side
                        API_VERSION,
                        "Checkpoint",
                        checkpoint["metadata"]["name"],
                        lambda body: body.get("status", {}).get("phase") == "Ready",
                    )
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert len(checkpoints) == 10
