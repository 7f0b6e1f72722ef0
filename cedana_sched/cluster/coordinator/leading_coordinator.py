"""Wiring of a coordinator while it leads."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from cedana_sched.adapter.cluster_contract import (
    ClusterAccess,
    ClusterAdapter,
    Gangs,
    OptingIn,
    QueuePolicies,
    QueuePolicyChanges,
    Withdrawing,
)
from cedana_sched.adapter.contract import Adapter
from cedana_sched.adapter.registry import AdapterLoadError, load
from cedana_sched.cluster.configuration import NODE_VARIABLE, CoordinatorConfiguration, CredentialsConfiguration
from cedana_sched.cluster.coordinator.adapter_notes import ConfigMapNotes
from cedana_sched.cluster.coordinator.adapter_supervision import AdapterMetrics, OwnDeployment, keep_running
from cedana_sched.cluster.coordinator.archived_pod_ends import ArchivedPodEnds
from cedana_sched.cluster.coordinator.checkpoint_finalizer import CheckpointFinalizer
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById, CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.checkpointable_events import CheckpointableEvents
from cedana_sched.cluster.coordinator.checkpoints_in_use import CheckpointsInUse
from cedana_sched.cluster.coordinator.container_restarts import ContainerRestarts
from cedana_sched.cluster.coordinator.event_publisher import EventListeners, EventPublisher
from cedana_sched.cluster.coordinator.excluded_namespace_cancellation import ExcludedNamespacesAdapter
from cedana_sched.cluster.coordinator.garbage_collection_scheduler import GarbageCollectionScheduler
from cedana_sched.cluster.coordinator.identity_rivals import Rivals
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.cluster.coordinator.journal import ObjectJournal, OnRecordsSaved
from cedana_sched.cluster.coordinator.missed_restores import MissedRestores
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.owner_references import OwnerReferences
from cedana_sched.cluster.coordinator.periodic_pod_snapshots import PeriodicPodSnapshots
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.cluster.coordinator.pods_missed_by_webhook import PodsMissedByWebhook
from cedana_sched.cluster.coordinator.policies import ClusterPolicies
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.rejected_writes import RejectedWrites
from cedana_sched.cluster.coordinator.resumed_snapshots import ResumedSnapshots
from cedana_sched.cluster.coordinator.retention_cleanup import RetentionCleanup
from cedana_sched.cluster.coordinator.scheduling_gates import Gates
from cedana_sched.cluster.coordinator.scoped_storage_condition import ScopedConditionProbe
from cedana_sched.cluster.coordinator.storage_probe import StorageProbe
from cedana_sched.cluster.coordinator.unanswered_deletions import UnansweredDeletions
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import NamespaceCorrected
from cedana_sched.coordinator.ports import EventListener
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.builtin_kinds import Metadata, Node, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import COMPONENT, EventRecorder, ObjectEvent
from cedana_sched.kube.mark_problems import report_mark_problems
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS, Resource
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch, first_unsynced_reason
from cedana_sched.model.objects import names
from cedana_sched.model.objects.uninstall_mark import parse_uninstall_mark
from cedana_sched.model.records import Record
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.store.snapshot_store import open_backend
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.sts import Sessions

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 2.0
"""How long a terminating coordinator keeps writing objects; the log has what is missing then."""


class LeadingCoordinator:
    """One coordinator and its dependencies, wired. Constructed for every leadership."""

    def __init__(
        self,
        api: Api,
        configuration: CoordinatorConfiguration,
        identity: str,
        *listeners: EventListener,
        on_records_saved: OnRecordsSaved | None = None,
        adapter_metrics: AdapterMetrics | None = None,
        count_rejected_write: Callable[[str, int], None] = lambda kind, status: None,  # noqa: ARG005 - most tests do not count
    ) -> None:
        namespace, served = configuration.namespace, configuration.served_namespaces
        self._events = EventRecorder(api, COMPONENT)
        unreadable = self._events.record_unreadable
        self._nodes = Informer(Watch(api, NODES, Node), unreadable)
        report_mark_problems(self._nodes, NODES, unreadable, _read_uninstall_mark)
        labels = f"{names.PROTECTED}=true"
        self._everywhere = Informer(
            Watch(api, PODS, Pod, labels=labels), partial(_report_unreadable_if_served, served, unreadable)
        )
        """All pods with the label of protected ones, also in unserved namespaces: for releases and cleanup."""
        self.pods = self._everywhere.view_of_namespaces(served)
        """All protected pods in served namespaces."""
        self._policies = ClusterPolicies(
            api, configuration.longest_deadline_seconds, unreadable, self._events.record_event
        )
        self._checkpoints = Informer(Watch(api, CHECKPOINTS, KnownCheckpoint), unreadable)
        by_snapshot, by_id = CheckpointsBySnapshot(self._checkpoints), CheckpointsById(self._checkpoints)
        self._retention = RetentionCleanup(api, self._checkpoints, by_snapshot)
        self._resumed = ResumedSnapshots(api, self._checkpoints, by_snapshot)
        owners = OwnerReferences(self._everywhere)
        self._projection = Projection(
            api,
            namespace,
            self._retention.has_removed_snapshot,
            owners.owner_references_for,
            RejectedWrites(self._events, count_rejected_write).on_write_rejected,
            lambda uid, namespace_uid: self.coordinator.post(NamespaceCorrected(uid, namespace_uid)),
            owners.marks_for,
        )
        self._dependencies = PodNodeDependencies()
        self._agents = ObjectAgents(
            api,
            self._projection,
            self._nodes,
            self._retention.on_snapshots_removed,
            self._dependencies,
            self._on_answer_rejected,
            by_snapshot.manifest_digest_of,
            unreadable,
        )
        self._in_use = CheckpointsInUse()
        self._finalizer = CheckpointFinalizer(
            api,
            self._checkpoints,
            by_snapshot,
            self._nodes,
            self._in_use,
            stop_writing=self._projection.stop_writing,
            is_gone=self._retention.is_snapshot_removed,
            events=self._events,
        )
        self._gates = Gates(api, self._everywhere, self._nodes, by_id, unreadable, served)
        self._rivals = Rivals(api, self.pods, self._checkpoints, self._events)
        self._collections = self._create_collection_scheduler(api, configuration)
        self._storages = StorageProbe(
            api, scoping=_create_scoped_probe(configuration.credentials), unreadable=unreadable
        )
        incarnations = IncarnationNumbers(self._agents.restores)
        self._restarts = ContainerRestarts(self._events, by_id, incarnations)
        self.pods.subscribe(self._restarts.on_pod_changed)
        self.pods.subscribe(CheckpointableEvents(self._events).on_pod_changed)

        def access(adapter: str) -> ClusterAccess:
            notes = ConfigMapNotes(api, namespace, adapter, identity)
            settings = configuration.adapter_settings.get(adapter, {})
            return ClusterAccess(
                api, self._events, self.pods, self._policies, by_id, namespace, notes, settings, served
            )

        self._adapters = {name: _connect_adapter(name, access(name)) for name in configuration.adapters}
        for one in self._adapters.values():
            if isinstance(one, QueuePolicies):
                self._policies.add_queue_policy_source(one.queue_policy)
        of_all_pods = dataclasses.replace(access(PodReports.name), pods=self._everywhere)
        fencing = PodFencing(self._everywhere, self._nodes, by_id, self._agents.restores)
        self._pod_ends = ArchivedPodEnds(api, by_id, self._everywhere, fencing)
        self._pod_reports = PodReports(of_all_pods, self._dependencies, incarnations, by_id, fencing)
        self._excluded = ExcludedNamespacesAdapter(served)
        self._periodic = PeriodicPodSnapshots(
            access(PeriodicPodSnapshots.name),
            self._checkpoints,
            self._policies.has_intervals,
            tuple(one for one in self._adapters.values() if isinstance(one, Gangs)),
        )
        self._policies.subscribe(self._periodic.on_policies_changed)
        for one in self._adapters.values():
            if isinstance(one, QueuePolicyChanges):
                one.on_queue_policies_changed(self._periodic.on_policies_changed)
        own: dict[str, Adapter] = {one.name: one for one in (self._pod_reports, self._excluded, self._periodic)}
        listener = EventListeners(EventPublisher(self._events, self._everywhere), *listeners)
        self._missed_by_webhook = PodsMissedByWebhook(
            api,
            by_id,
            self._events,
            listener.on_event,
            served,
            self._policies.chosen_policy_of,
            tuple(one for one in self._adapters.values() if isinstance(one, OptingIn)),
        )
        self._missed_restores = MissedRestores(self.pods, by_id, listener.on_event)
        self._unanswered = UnansweredDeletions(self.pods, by_id, listener.on_event)
        self._deployment = OwnDeployment(api, self._events, namespace, configuration.deployment)
        self._adapter_metrics = adapter_metrics or AdapterMetrics(CollectorRegistry())
        self._records_callback = on_records_saved
        self.coordinator = Coordinator(
            journal=ObjectJournal(api, namespace, identity, self._projection, self._on_records_saved, unreadable),
            adapters=own | self._adapters,
            agents=self._agents,
            clock=SystemClock(SERVER_TIME.seconds),
            listener=listener,
            amend_report=self._rivals.add_rivals_to_report,
        )

    @asynccontextmanager
    async def run_coordinator(self) -> AsyncIterator[Coordinator]:
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
                    ("missed restores", self._missed_restores.run()),
                    ("unanswered deletions", self._unanswered.run()),
                    ("gates", self._gates.run()),
                    ("rivals", self._rivals.run()),
                    ("storages", self._storages.run()),
                    ("retention", self._retention.run()),
                    ("resumed snapshots", self._resumed.run()),
                    ("ends of saved pods", self._pod_ends.run()),
                    ("checkpoint finalizers", self._finalizer.run()),
                    ("events", self._events.run()),
                )
            ]
            # before sync, these caches would show no pods, nodes and snapshots
            for synced in (self.pods.synced, self._nodes.synced, self._policies.synced, self._checkpoints.synced):
                await synced.wait()
            background.append(group.create_task(self._missed_by_webhook.run(), name="pods missed by the webhook"))
            if self._collections is not None:
                background.append(group.create_task(self._collections.run(), name="turns to collect garbage"))
            background += [
                group.create_task(self._keep_adapter_running(name), name=f"adapter {name}") for name in self._adapters
            ]
            try:
                async with self.coordinator:
                    yield self.coordinator
            finally:
                await self._wait_projection_flushed()
                for task in background:
                    task.cancel()

    @property
    def unsynced_reason(self) -> str | None:
        """What has not synced yet, and why; None once it coordinates."""
        return first_unsynced_reason(self.pods, self._checkpoints, self._nodes) or self._policies.unsynced_reason

    async def withdraw_adapters(self) -> None:
        """Withdraw all adapters, so that schedulers proceed without us; only while it coordinates.

        Raises:
            ApiError: the API server refused.
        """
        for adapter in self._adapters.values():
            if isinstance(adapter, Withdrawing):
                await adapter.withdraw()

    def _create_collection_scheduler(
        self, api: Api, configuration: CoordinatorConfiguration
    ) -> GarbageCollectionScheduler | None:
        """Return None if agents collect all namespaces themselves."""
        given = configuration.credentials
        if given is None or given.collection_turns is None:
            return None
        return GarbageCollectionScheduler(
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

    def _on_answer_rejected(self, resource: Resource, one: Metadata, why: str) -> None:
        reference = resource.reference(one.name, one.namespace, one.uid)
        text = f"The answer of its node is not accepted: {why}"
        self._events.record_event(ObjectEvent(reference, "AnswerRejected", text, warning=True))

    async def _keep_adapter_running(self, name: str) -> None:
        await keep_running(name, self._adapters[name], self._deployment, self._adapter_metrics)

    def _on_records_saved(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        self._gates.on_records_saved(records, forgotten)
        self._in_use.on_records_saved(records, forgotten)
        self._dependencies.on_records_saved(records, forgotten)
        self._excluded.on_records_saved(records, forgotten)
        self._periodic.on_records_saved(records, forgotten)
        self._resumed.on_records_saved(records, forgotten)
        if self._records_callback is not None:
            self._records_callback(records, forgotten)

    async def _wait_projection_flushed(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._projection.wait_flushed()
        except TimeoutError:
            log.info("objects lag behind; the next coordinator carries them over from the log")


def _read_uninstall_mark(node: Node) -> datetime | None:
    return parse_uninstall_mark(node.metadata.annotations, SERVER_TIME.now())


def _report_unreadable_if_served(
    served: ServedNamespaces, sink: UnreadableSink, resource: Resource, one: Unreadable
) -> None:
    if served.includes(one.metadata.namespace):
        sink(resource, one)


def _create_scoped_probe(configuration: CredentialsConfiguration | None) -> ScopedConditionProbe:
    if configuration is None:
        return ScopedConditionProbe()
    return ScopedConditionProbe(
        configuration.bucket, Sessions(configuration.bucket, configuration.sessions).create_session
    )


def _connect_adapter(name: str, cluster: ClusterAccess) -> ClusterAdapter:
    loaded = load(name)
    if not hasattr(loaded, "connect") or not hasattr(loaded, "run"):
        raise AdapterLoadError(
            f"adapter {name!r} is none for a cluster", remedy="see cedana_sched/adapter/cluster_contract.py"
        )
    adapter: ClusterAdapter = loaded.connect(cluster)
    return adapter
