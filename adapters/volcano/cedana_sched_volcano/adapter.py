"""Volcano's implementation of the adapter contract: marked evictions as signals, and eviction of the rest of a gang.

The admission webhook holds the scheduler's write of `DisruptionTarget`, and marks the pod. That needs no change of
Volcano's configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import structlog

from cedana_sched.adapter.cluster_contract import (
    ClusterAccess,
    ClusterAdapter,
    Diagnosing,
    Gangs,
    OptedInSink,
    OptingIn,
    QueuePolicies,
    QueuePolicyChanges,
)
from cedana_sched.adapter.contract import Report
from cedana_sched.adapter.deletion_answers import DeletionAnswers, DeletionCause, is_answer_awaited
from cedana_sched.adapter.marked_evictions import MarkedEvictions
from cedana_sched.adapter.settings import read_section
from cedana_sched.kube.builtin_kinds import PartialObject, Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.mark_problems import report_mark_problems
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.diagnostic_findings import Finding
from cedana_sched.model.objects.protect_mark import validate_protect_mark
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched_volcano.deletion_causes import find_deletion_cause
from cedana_sched_volcano.doctor.installation_reader import examine_cluster
from cedana_sched_volcano.gangs import GangResolver
from cedana_sched_volcano.nomination_removal import NominationRemover
from cedana_sched_volcano.objects import POD_GROUPS, QUEUES, SCHEDULER_NAME, PodGroup
from cedana_sched_volcano.pod_queues import PodQueueResolver, is_protecting
from cedana_sched_volcano.queue_opt_in import QueueOptIn
from cedana_sched_volcano.settings import Settings

log = structlog.get_logger(__name__)

_KEEPING: Final = (
    "its policy says onCheckpointFailure: KeepRunning. Who needs its place waits, or takes another victim's, and it is"
    " saved anew when it is requested, less often each time: mend what keeps it from being saved, delete it, or let"
    " the policy say Evict"
)


class VolcanoAdapter:
    """Adapter for pods that Volcano schedules, whatever their controller."""

    name: ClassVar[str] = "volcano"

    def __init__(self, cluster: ClusterAccess) -> None:
        self._settings = read_section(self.name, Settings, cluster.settings)
        for label in self._settings.other_labels:
            register_cached_key(label)
        self._api = cluster.api
        self._policies = cluster.policies
        self._events = cluster.events
        self._pods = cluster.pods
        self._groups = Informer(
            Watch(cluster.api, POD_GROUPS, PodGroup, within=cluster.served), cluster.record_unreadable
        )
        self._queues = Informer(
            Watch(cluster.api, QUEUES, PartialObject, only_metadata=True), cluster.record_unreadable
        )
        report_mark_problems(self._queues, QUEUES, cluster.record_unreadable, _validate_mark)
        self._pod_queues = PodQueueResolver(self._queues.get, self._groups.get)
        self._opt_in = QueueOptIn(self._pod_queues, cluster.served)
        self._nominations = NominationRemover(cluster.api, cluster.pods, cluster.record_unreadable)
        self._gangs = gangs = GangResolver(self._groups, cluster.pods)
        self._evictions = MarkedEvictions(
            self.name, cluster, concerns=_is_volcanos, family_of=gangs.family_evicted_with
        )
        self._answers = DeletionAnswers(
            cluster, self._find_deletion_cause, is_handing_over=self._settings.hands_over_deletions
        )
        self._deleted_members: set[str] = set()
        """Uids of pods of evicted gangs that this adapter has deleted."""
        self._pods.subscribe(self._on_pod_change)

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Construct it; makes no API call.

        Raises:
            UsageError: a setting is invalid.
        """
        return cls(cluster)

    @classmethod
    async def diagnose(cls, api: Api) -> list[Finding]:
        """See `Diagnosing`."""
        return await examine_cluster(api)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """See `adapter.cluster_contract.Watching`."""
        return (self._groups, self._queues, *self._nominations.informers)

    async def run(self) -> None:
        """Run the informers, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._groups.run(), name="PodGroups")
            await self._groups.synced.wait()  # first: they determine the pods of a Queue
            group.create_task(self._queues.run(), name="Queues")
            await self._queues.synced.wait()
            group.create_task(self._evictions.run(), name="eviction marks")
            group.create_task(self._nominations.run(), name="nominations")
            await self._pods.synced.wait()
            for pod in self._pods:
                self._on_pod_change(None, pod)
            group.create_task(self._answers.run(), name="answers to pods")

    def opt_in_annotations(self, pod: Object) -> Mapping[str, str]:
        """See `adapter.cluster_contract.OptingIn`."""
        return self._opt_in.annotations_for(pod)

    def on_more_opted_in(self, sink: OptedInSink) -> None:
        """See `adapter.cluster_contract.OptingIn`."""

        def on_queue_change(before: PartialObject | None, now: PartialObject | None) -> None:
            if now is not None and is_protecting(now) and (before is None or not is_protecting(before)):
                sink(None)

        self._queues.subscribe(on_queue_change)

    def queue_policy(self, pod: Pod) -> str | None:
        """See `adapter.cluster_contract.QueuePolicies`."""
        return self._pod_queues.policy_of(pod)

    def on_queue_policies_changed(self, sink: Callable[[], None]) -> None:
        """See `adapter.cluster_contract.QueuePolicyChanges`: annotations of Queues name the policies."""

        def on_queue_change(before: PartialObject | None, now: PartialObject | None) -> None:
            if before is None or now is None or before.metadata.annotations != now.metadata.annotations:
                sink()

        self._queues.subscribe(on_queue_change)

    def gang_of(self, pod: Pod) -> str | None:
        """See `adapter.cluster_contract.Gangs`."""
        return self._gangs.gang_of(pod)

    def reports(self) -> AsyncIterator[Report]:
        """See `MarkedEvictions`."""
        return self._evictions.reports()

    async def release(self, release: Release) -> None:
        """Release the eviction. A gang is evicted as a whole, whichever members the scheduler chose.

        Raises:
            RetryableError: the API server was unavailable.
        """
        await self._evictions.synced.wait()
        self._publish_refused_evictions(release)
        if not await self._evictions.on_released(release):
            return
        committed = {uid for uid, verdict in release.verdicts.items() if verdict is Verdict.COMMITTED}
        for pod in self._pods:
            metadata = pod.metadata
            if metadata.uid in committed and metadata.deletion_timestamp is None:
                self._deleted_members.add(metadata.uid)
                with suppress(ConflictError):  # it is gone, and another pod has its name
                    await self._api.delete(PODS, metadata.name, metadata.namespace, uid=metadata.uid)
                    log.info("member of an evicted gang deleted", namespace=metadata.namespace, pod=metadata.name)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        if before is not None and (now is None or now.metadata.uid != before.metadata.uid):
            self._deleted_members.discard(before.metadata.uid)
        if now is None or not self._answers_deletion_of(now):
            return
        if before is None or before.metadata.uid != now.metadata.uid or not self._answers_deletion_of(before):
            self._answers.add(now)

    def _answers_deletion_of(self, pod: Pod) -> bool:
        return (
            _is_volcanos(pod)
            and is_answer_awaited(pod)
            and not self._settings.other_labels & pod.metadata.labels.keys()
        )

    async def _find_deletion_cause(self, pod: Pod) -> DeletionCause:
        """See `DeletionAnswers`; Volcano's scheduler marks a pod before it deletes it."""
        if pod.is_evicted or pod.metadata.uid in self._deleted_members:
            return DeletionCause.SCHEDULER
        return await find_deletion_cause(self._api, self._policies, pod)

    def _publish_refused_evictions(self, release: Release) -> None:
        """Publish why an eviction is refused: Volcano may retry it, and does not report the reason."""
        for pod in self._pods:
            metadata = pod.metadata
            if release.verdicts.get(metadata.uid) is Verdict.KEEP_RUNNING:
                why = release.reasons.get(metadata.uid, "no reason is known")
                text = f"Volcano may not evict {metadata.name}: it could not be saved ({why}), and {_KEEPING}"
                involved = PODS.reference(metadata.name, metadata.namespace, metadata.uid)
                self._events.record_event(ObjectEvent(involved, "EvictionRefused", text, warning=True))


def _validate_mark(queue: PartialObject) -> None:
    validate_protect_mark("metadata.annotations", queue.metadata.annotations)


def _is_volcanos(pod: Pod) -> bool:
    return pod.spec.scheduler_name == SCHEDULER_NAME


if TYPE_CHECKING:

    def _fulfils(
        adapter: VolcanoAdapter,
    ) -> tuple[ClusterAdapter, Diagnosing, Gangs, OptingIn, QueuePolicies, QueuePolicyChanges]:
        return adapter, adapter, adapter, adapter, adapter, adapter
