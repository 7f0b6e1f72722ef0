"""Wiring of a coordinator while it leads."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from cedana_sched.adapter.cluster import ClusterAccess, ClusterAdapter, OptingIn, QueuePolicies, Withdrawing
from cedana_sched.adapter.contract import Adapter
from cedana_sched.adapter.registry import AdapterLoadError, load
from cedana_sched.cluster.configuration import NODE_VARIABLE, CoordinatorConfiguration, CredentialsConfiguration
from cedana_sched.cluster.coordinator.adapters import AdapterMetrics, OwnDeployment, keep_running
from cedana_sched.cluster.coordinator.agents import ObjectAgents
from cedana_sched.cluster.coordinator.alive import Alive
from cedana_sched.cluster.coordinator.beginning_numbers import BeginningNumbers
from cedana_sched.cluster.coordinator.collections import Collections
from cedana_sched.cluster.coordinator.event_publisher import EventListeners, EventPublisher
from cedana_sched.cluster.coordinator.excluded import Excluded
from cedana_sched.cluster.coordinator.gates import Gates
from cedana_sched.cluster.coordinator.in_use import InUse
from cedana_sched.cluster.coordinator.journal import ObjectJournal, Recorded
from cedana_sched.cluster.coordinator.known import ById, BySnapshot
from cedana_sched.cluster.coordinator.notes import ConfigMapNotes
from cedana_sched.cluster.coordinator.owners import Owners
from cedana_sched.cluster.coordinator.passed_over import PassedOver
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.cluster.coordinator.policies import ClusterPolicies
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.purge import Purge
from cedana_sched.cluster.coordinator.refusals import Refusals
from cedana_sched.cluster.coordinator.removal import Removal
from cedana_sched.cluster.coordinator.restarts import ContainerRestarts
from cedana_sched.cluster.coordinator.rivals import Rivals
from cedana_sched.cluster.coordinator.scoping import Scoping
from cedana_sched.cluster.coordinator.storage_probe import StorageProbe
from cedana_sched.cluster.coordinator.unprepared import Unprepared
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import NamespaceCorrected
from cedana_sched.coordinator.ports import EventListener
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import COMPONENT, EventRecorder, ObjectEvent
from cedana_sched.kube.objects import Metadata, Node, Pod
from cedana_sched.kube.own_kinds.checkpoint import KnownCheckpoint
from cedana_sched.kube.reading import Unreadable, UnreadableSink
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch, awaited
from cedana_sched.model.objects import names
from cedana_sched.model.records import Record
from cedana_sched.model.served import Served
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.snapshots import open_backend
from cedana_sched.store.sts import Sessions

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 2.0
"""How long a terminating coordinator keeps writing objects; the log has what is missing then."""


class Leader:
    """One coordinator and its dependencies, wired. Constructed for every leadership."""

    def __init__(
        self,
        api: Api,
        configuration: CoordinatorConfiguration,
        identity: str,
        *listeners: EventListener,
        recorded: Recorded | None = None,
        adapter_metrics: AdapterMetrics | None = None,
        refused: Callable[[str, int], None] = lambda kind, status: None,  # noqa: ARG005 - most tests do not count
    ) -> None:
        namespace, served = configuration.namespace, configuration.served
        self._events = EventRecorder(api, COMPONENT)
        unreadable = self._events.unreadable
        self._nodes = Informer(Watch(api, NODES, Node), unreadable)
        labels = f"{names.PROTECTED}=true"
        self._everywhere = Informer(Watch(api, PODS, Pod, labels=labels), partial(_unreadable_in, served, unreadable))
        """All pods with the label of protected ones, also in unserved namespaces: for releases and cleanup."""
        self.pods = self._everywhere.within(served)
        """All protected pods in served namespaces."""
        self._policies = ClusterPolicies(api, configuration.longest_deadline_seconds, unreadable, self._events.tell)
        self._checkpoints = Informer(Watch(api, CHECKPOINTS, KnownCheckpoint), unreadable)
        by_snapshot, by_id = BySnapshot(self._checkpoints), ById(self._checkpoints)
        self._removal = Removal(api, self._checkpoints, by_snapshot)
        self._projection = Projection(
            api,
            namespace,
            self._removal.is_removed,
            Owners(self._everywhere).of,
            Refusals(self._events, refused).refused,
            lambda uid, namespace_uid: self.coordinator.post(NamespaceCorrected(uid, namespace_uid)),
        )
        self._alive = Alive()
        self._agents = ObjectAgents(
            api,
            self._projection,
            self._nodes,
            self._removal.removed,
            self._alive,
            self._disbelieved,
            by_snapshot.manifest_of,
            unreadable,
        )
        self._in_use = InUse()
        self._purge = Purge(
            api,
            self._checkpoints,
            by_snapshot,
            self._nodes,
            self._in_use,
            let_go=self._projection.let_go,
            is_gone=self._removal.is_gone,
            events=self._events,
        )
        self._gates = Gates(api, self._everywhere, self._nodes, by_id, unreadable, served)
        self._rivals = Rivals(api, self.pods, self._checkpoints, self._events)
        self._collections = self._collecting(api, configuration)
        self._storages = StorageProbe(api, scoping=_scoping(configuration.credentials), unreadable=unreadable)
        beginnings = BeginningNumbers(self._agents.restores)
        self._restarts = ContainerRestarts(self._events, by_id, beginnings)
        self.pods.subscribe(self._restarts.heard)

        def access(adapter: str) -> ClusterAccess:
            notes = ConfigMapNotes(api, namespace, adapter, identity)
            settings = configuration.adapter_settings.get(adapter, {})
            return ClusterAccess(
                api, self._events, self.pods, self._policies, by_id, namespace, notes, settings, served
            )

        self._adapters = {name: _connected(name, access(name)) for name in configuration.adapters}
        for one in self._adapters.values():
            if isinstance(one, QueuePolicies):
                self._policies.look_up(one.queue_policy)
        of_all_pods = dataclasses.replace(access(PodReports.name), pods=self._everywhere)
        self._pod_reports = PodReports(of_all_pods, self._alive, beginnings, by_id)
        self._excluded = Excluded(served)
        own: dict[str, Adapter] = {PodReports.name: self._pod_reports, Excluded.name: self._excluded}
        listener = EventListeners(EventPublisher(self._events, self._everywhere), *listeners)
        self._unprepared = Unprepared(
            api,
            by_id,
            self._events,
            listener.on_event,
            served,
            self._policies.chosen,
            tuple(one for one in self._adapters.values() if isinstance(one, OptingIn)),
        )
        self._passed_over = PassedOver(self.pods, by_id, listener.on_event)
        self._deployment = OwnDeployment(api, self._events, namespace, configuration.deployment)
        self._adapter_metrics = adapter_metrics or AdapterMetrics(CollectorRegistry())
        self._on_recorded = recorded
        self.coordinator = Coordinator(
            journal=ObjectJournal(api, namespace, identity, self._projection, self._recorded, unreadable),
            adapters=own | self._adapters,
            agents=self._agents,
            clock=SystemClock(SERVER_TIME.seconds),
            listener=listener,
            screen=self._rivals.screen,
        )

    @asynccontextmanager
    async def coordinating(self) -> AsyncIterator[Coordinator]:
        """Coordinate inside the block."""
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(work, name=name)
                for name, work in (
                    ("projection", self._projection.run()),
                    ("orders", self._agents.run()),
                    ("policies", self._policies.run()),
                    ("nodes", self._nodes.run()),
                    ("pods", self._everywhere.run()),
                    ("ends of pods", self._pod_reports.run()),
                    ("checkpoints", self._checkpoints.run()),
                    ("restarts of containers", self._restarts.run(self.pods)),
                    ("pods passed over", self._passed_over.run()),
                    ("gates", self._gates.run()),
                    ("rivals", self._rivals.run()),
                    ("storages", self._storages.run()),
                    ("removal", self._removal.run()),
                    ("purge", self._purge.run()),
                    ("events", self._events.run()),
                )
            ]
            # before sync, these caches would show no pods, nodes and snapshots
            for synced in (self.pods.synced, self._nodes.synced, self._policies.synced, self._checkpoints.synced):
                await synced.wait()
            background.append(group.create_task(self._unprepared.run(), name="unprepared pods"))
            if self._collections is not None:
                background.append(group.create_task(self._collections.run(), name="turns to collect garbage"))
            background += [group.create_task(self._kept(name), name=f"adapter {name}") for name in self._adapters]
            try:
                async with self.coordinator:
                    yield self.coordinator
            finally:
                await self._flush()
                for task in background:
                    task.cancel()

    @property
    def awaited(self) -> str | None:
        """What has not synced yet, and why; None once it coordinates."""
        return awaited(self.pods, self._checkpoints, self._nodes) or self._policies.awaited

    async def withdraw(self) -> None:
        """Withdraw all adapters, so that schedulers proceed without us; only while it coordinates.

        Raises:
            ApiError: the API server refused.
        """
        for adapter in self._adapters.values():
            if isinstance(adapter, Withdrawing):
                await adapter.withdraw()

    def _collecting(self, api: Api, configuration: CoordinatorConfiguration) -> Collections | None:
        """Return None if agents collect all namespaces themselves."""
        given = configuration.credentials
        if given is None or given.collection_turns is None:
            return None
        return Collections(
            api,
            partial(open_backend, StorageConfig(s3=given.bucket)),
            given.collection_turns,
            configuration.namespace,
            self._nodes,
            self._everywhere,
            self._checkpoints,
            shared=given.shared_namespaces,
            own_node=os.environ.get(NODE_VARIABLE, ""),
        )

    def _disbelieved(self, resource: Resource, one: Metadata, why: str) -> None:
        reference = resource.reference(one.name, one.namespace, one.uid)
        text = f"The answer of its node is not accepted: {why}"
        self._events.tell(ObjectEvent(reference, "AnswerRejected", text, warning=True))

    async def _kept(self, name: str) -> None:
        await keep_running(name, self._adapters[name], self._deployment, self._adapter_metrics)

    def _recorded(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        self._gates.recorded(records, forgotten)
        self._in_use.recorded(records, forgotten)
        self._alive.recorded(records, forgotten)
        self._excluded.recorded(records, forgotten)
        if self._on_recorded is not None:
            self._on_recorded(records, forgotten)

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._projection.flushed()
        except TimeoutError:
            log.info("objects lag behind; the next coordinator carries them over from the log")


def _unreadable_in(served: Served, told: UnreadableSink, resource: Resource, one: Unreadable) -> None:
    if served.includes(one.metadata.namespace):
        told(resource, one)


def _scoping(configuration: CredentialsConfiguration | None) -> Scoping:
    if configuration is None:
        return Scoping()
    return Scoping(configuration.bucket, Sessions(configuration.bucket, configuration.sessions).begin)


def _connected(name: str, cluster: ClusterAccess) -> ClusterAdapter:
    loaded = load(name)
    if not hasattr(loaded, "connect") or not hasattr(loaded, "run"):
        raise AdapterLoadError(f"adapter {name!r} is none for a cluster", remedy="see cedana_sched/adapter/cluster.py")
    adapter: ClusterAdapter = loaded.connect(cluster)
    return adapter
