"""Kueue's implementation of the adapter contract: pending evictions as signals, and their release.

The admission webhook holds Kueue's suspension of an object, such as a Job, by the PreemptionHold; the release is an
annotation on the object, which the webhook checks, and whose write makes Kueue retry at once.

A terminating pod waits in its preStop hook until the eviction of its object is signalled, or until this adapter
releases the pod because it is not evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import structlog

from cedana_sched.adapter.cluster_contract import (
    ClusterAccess,
    ClusterAdapter,
    QueuePolicies,
    QueuePolicyChanges,
    Withdrawing,
)
from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.adapter.deletion_answers import DeletionAnswers, DeletionCause
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.adapter.settings import read_section
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import PODS, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import HasMetadata, Informer, Watch
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched_kueue.admission_check_controller import AdmissionCheckController
from cedana_sched_kueue.admission_check_removal import withdraw_checks
from cedana_sched_kueue.holds_before_restart import released_victims_by_signal, unreleased_signal_uids
from cedana_sched_kueue.kind_informers import KindInformers
from cedana_sched_kueue.managed_kinds import ManagedKinds, Settings
from cedana_sched_kueue.managed_objects import ManagedObject, ManagedObjects, own_uid, owner_uid
from cedana_sched_kueue.objects import WORKLOADS, Workload
from cedana_sched_kueue.pod_workloads import PodWorkloads
from cedana_sched_kueue.preemptions import ADAPTER, EvictionDetector, KueueReport, target_uid_of_signal
from cedana_sched_kueue.unheld_evictions import awaits_confirmation, is_evicted, is_suspended
from cedana_sched_kueue.workload_choice import workloads_of_object

T = TypeVar("T", bound=HasMetadata)
log = structlog.get_logger(__name__)


class KueueAdapter:
    """Adapter for the objects that Kueue suspends: Jobs, and those of the kinds that the admin names."""

    name: ClassVar[str] = ADAPTER

    def __init__(self, cluster: ClusterAccess) -> None:
        self._api = cluster.api
        self._pods = cluster.pods
        self._served = cluster.served
        settings = read_section(ADAPTER, Settings, cluster.settings)
        self._kinds = ManagedKinds.of(settings)
        self._informers = KindInformers(cluster.api, self._kinds, cluster.record_unreadable, cluster.served)
        self._objects = ManagedObjects(self._informers.by_resource)
        # includes Workloads in unserved namespaces, which wait for our AdmissionCheck all the same
        self._workloads = Informer(Watch(cluster.api, WORKLOADS, Workload), cluster.record_unreadable)
        self._synced = asyncio.Event()
        self._readers: ReportFanout[KueueReport] = ReportFanout()
        self._annotating = WorkQueue("annotation of a suspended object", self._correct_hold_annotation)
        self._answers = DeletionAnswers(
            cluster, self._find_deletion_cause, is_handing_over=settings.hands_over_deletions
        )
        self._admission = AdmissionCheckController(
            cluster.api, self._workloads, cluster.snapshots, self._kinds, cluster.record_unreadable, cluster.served
        )
        self._preemptions = EvictionDetector(
            objects=self._objects,
            pod_workloads=PodWorkloads(self._workloads, Index(owner_uid, self._workloads), cluster.pods),
            workloads=Index(own_uid, self._workloads),
            workloads_of=Index(self._followed_owner_uid, self._workloads),
            pods_of=Index(owner_uid, cluster.pods),
            policies=cluster.policies,
            clock=SERVER_TIME.seconds,
        )
        self._informers.subscribe(lambda before, now: self._publish_reports_of_changed(own_uid, before, now))
        self._workloads.subscribe(lambda before, now: self._publish_reports_of_changed(self._stopped_uid, before, now))
        self._pods.subscribe(self._on_pod_change)

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Construct it; makes no API call."""
        return cls(cluster)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """See `adapter.cluster_contract.Watching`."""
        return (*self._informers.present, self._workloads, *self._admission.informers)

    async def run(self) -> None:
        """Run the informers and reconcile AdmissionChecks, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run(), name="objects that Kueue suspends")
            await self._informers.wait_settled()  # first: an older Workload beside a newer Job looks like an eviction
            group.create_task(self._workloads.run(), name="Workloads")
            await self._workloads.synced.wait()
            group.create_task(self._admission.run(), name="admission checks")
            for informer in self._admission.informers:  # they determine the policy of a victim's queue
                await informer.synced.wait()
            await self._pods.synced.wait()
            await self._load_earlier_victims()
            self._synced.set()
            for uid in (*map(own_uid, self._objects), *map(self._stopped_uid, self._workloads)):
                self._publish_object_reports(uid)
            for pod in self._pods:
                self._on_pod_change(None, pod)
            group.create_task(self._annotating.run(), name="annotations of suspended objects")
            group.create_task(self._answers.run(), name="answers to pods")

    async def reports(self) -> AsyncIterator[KueueReport]:
        """Report what is pending, then changes, until the reader stops."""
        await self._synced.wait()
        with self._readers.subscribed_queue(self._preemptions.pending_reports()) as queue:
            for report in await self._find_missed_cancellations():
                yield report
            while True:
                yield await queue.get()

    async def release(self, release: Release) -> None:
        """Allow Kueue to suspend the object, whatever the verdicts: Kueue cannot choose another victim.

        A cancelled eviction gets no annotation: it would release the next eviction.

        Raises:
            RetryableError: the API server was unavailable.
        """
        await self._synced.wait()
        uid, name = target_uid_of_signal(release.signal_uid), hold_name(release.signal_uid)
        target = self._preemptions.find_object(uid)
        if target is None:
            await self._release_unserved(uid, name)
        else:
            taken_back = set(release.verdicts.values()) == {Verdict.NOT_NEEDED} and not (
                self._preemptions.pending_eviction(uid)
            )
            is_written = target.metadata.annotations.get(names.RELEASED_HOLD) == name
            if not (target.suspended or target.ended or taken_back or is_written):
                await self._write_annotation_of(target, name)
                log.info("released", preemption=release.signal_uid, **_log_fields(target.metadata))
        self._preemptions.on_released(release.signal_uid)

    def queue_policy(self, pod: Pod) -> str | None:
        """See `QueuePolicies`: by the current check, through which Kueue admitted the pod's object."""
        owner = self._preemptions.suspended_owner_of(pod) or ""
        workloads = self._preemptions.workloads_of(owner, pod.metadata.namespace)
        return self._admission.policy_of(workloads[0]) if workloads else None

    def on_queue_policies_changed(self, sink: Callable[[], None]) -> None:
        """See `adapter.cluster_contract.QueuePolicyChanges`: AdmissionChecks name the policies."""
        self._admission.on_policies_changed(sink)

    async def withdraw(self) -> None:
        """See `adapter.cluster_contract.Withdrawing`."""
        await withdraw_checks(self._api)

    def _publish_reports_of_changed(self, uid_of: Callable[[T], str | None], *changed: T | None) -> None:
        for uid in {uid_of(one) for one in changed if one is not None}:
            if uid is not None:
                self._publish_object_reports(uid)

    def _followed_owner_uid(self, workload: Workload) -> str | None:
        """Return the uid of the Workload's object; None if its kind is not followed."""
        owner = workload.metadata.controller_reference
        return owner.uid if owner is not None and self._kinds.resource_of(owner) is not None else None

    def _stopped_uid(self, workload: Workload) -> str:
        """Return the uid of the object that Kueue suspends to stop the Workload, or of the Workload of pods."""
        return self._followed_owner_uid(workload) or workload.metadata.uid

    def _publish_object_reports(self, uid: str) -> None:
        if not self._synced.is_set():
            return
        for report in self._preemptions.reports_due(uid):
            self._readers.publish(report)
        if self._preemptions.annotation_correction(uid)[0]:
            self._annotating.add(uid)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Process a terminating pod, which may indicate an eviction that was not held."""
        if now is None or not awaits_confirmation(now) or (before is not None and awaits_confirmation(before)):
            return
        if (uid := self._preemptions.suspended_owner_of(now)) is not None:
            self._publish_object_reports(uid)
            self._answers.add(now)

    async def _find_deletion_cause(self, pod: Pod) -> DeletionCause:
        """See `DeletionAnswers`.

        Raises:
            ApiError: the API server cannot answer now.
        """
        uid = self._preemptions.suspended_owner_of(pod)
        if uid is None or not awaits_confirmation(pod):
            return DeletionCause.SCHEDULER
        if pod.status.phase == "Running" and (
            self._preemptions.is_evicted(uid, pod.metadata.namespace) or await self._is_evicted(pod, uid)
        ):
            return DeletionCause.SCHEDULER
        return DeletionCause.OTHER

    async def _is_evicted(self, pod: Pod, uid: str) -> bool:
        """Whether the pod's object is evicted; Kueue sets the Workload's condition, then suspends, then pods go.

        Raises:
            ApiError: the API server cannot answer now.
        """
        known, owner = self._objects.find(uid), pod.metadata.controller_reference
        resource = self._objects.resource_of(uid) or self._kinds.resource_of(owner)
        if resource is None or owner is None:
            return False
        name = owner.name if known is None else known.metadata.name
        target = await self._api.find(resource, name, pod.metadata.namespace, into=ManagedObject)
        if target is None or target.metadata.uid != uid or not is_suspended(target):
            return False
        return any(map(is_evicted, (await self._fetch_current_workloads(resource, target.metadata))[:1]))

    async def _fetch_current_workloads(self, resource: Resource, owner: Metadata) -> list[Workload]:
        """Return Kueue's current Workloads of an object: the cached ones if any still exist."""
        known = [one.metadata for one in self._preemptions.workloads_of(owner.uid, owner.namespace)]
        found = [await self._api.find(WORKLOADS, one.name, one.namespace, into=Workload) for one in known]
        if left := workloads_of_object(owner, filter(None, found), resource):
            return left
        listed, _ = await self._api.list_all(WORKLOADS, owner.namespace, into=Workload)
        return workloads_of_object(owner, listed, resource)

    async def _correct_hold_annotation(self, uid: str) -> None:
        needed, name = self._preemptions.annotation_correction(uid)
        target = self._preemptions.find_object(uid)
        if needed and target is not None:
            await self._write_annotation_of(target, name)
            what = "nothing to hold" if name else "release of an earlier hold removed"
            log.info(what, **_log_fields(target.metadata))

    async def _release_unserved(self, uid: str, name: str) -> None:
        """Release an object in a namespace excluded meanwhile: without a change of it, Kueue's backoff grows."""
        for workload in self._preemptions.workloads_owned_by(uid):
            namespace, owner = workload.metadata.namespace, workload.metadata.controller_reference
            resource = self._kinds.resource_of(owner)
            if owner is None or resource is None or self._served.includes(namespace) or not is_evicted(workload):
                continue
            await self._write_hold_annotation(resource, Metadata(owner.name, namespace, uid), name)

    async def _write_annotation_of(self, target: ManagedObject, name: str | None) -> None:
        """Set or remove the annotation on what Kueue stops: an object, or each of its pods. Kueue then tries again."""
        uid = target.metadata.uid
        if (resource := self._objects.resource_of(uid)) is not None:
            await self._write_hold_annotation(resource, target.metadata, name)
        for pod in self._preemptions.pods_to_stop(uid):
            await self._write_hold_annotation(PODS, pod.metadata, name)

    async def _write_hold_annotation(self, resource: Resource, metadata: Metadata, name: str | None) -> None:
        """Set or remove the annotation on this very object; a deleted one needs none."""
        patch = {"metadata": {"uid": metadata.uid, "annotations": {names.RELEASED_HOLD: name}}}
        try:
            await self._api.patch(resource, metadata.name, metadata.namespace, patch)
        except AbsentError:
            return
        except ConflictError as error:
            message = f"{resource.kind} {metadata.namespace}/{metadata.name} is another one, or was changed meanwhile"
            raise RetryableError(message, remedy="it is tried again") from error

    async def _load_earlier_victims(self) -> None:
        """Load victims signalled before this run: other pods of the same object may still need a signal."""
        try:
            released = await released_victims_by_signal(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read: who comes late to one is not saved", error=error.message)
            return
        for signal_uid, victims in released.items():
            self._preemptions.record_earlier_signal(signal_uid, victims)

    async def _find_missed_cancellations(self) -> list[PreemptionCancelled]:
        """Return cancellations of holds whose objects Kueue stopped evicting while no coordinator led."""
        try:
            standing = await unreleased_signal_uids(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read; they end at their deadlines", error=error.message)
            return []
        return [PreemptionCancelled(uid, "Kueue no longer evicts it") for uid in standing if self._is_stale(uid)]

    def _is_stale(self, signal_uid: str) -> bool:
        uid = target_uid_of_signal(signal_uid)
        target, eviction = self._preemptions.find_object(uid), self._preemptions.pending_eviction(uid)
        if eviction is not None:
            return eviction.uid != signal_uid
        if target is None:
            return True
        # suspended: the eviction went through, and other reports cover its pods' ends. Kueue also stops an object
        # without a Workload, and an unreadable Workload proves nothing
        return not target.suspended and bool(self._preemptions.workloads_of(uid, target.metadata.namespace))


def _log_fields(metadata: Metadata) -> dict[str, str]:
    return {"namespace": metadata.namespace, "name": metadata.name}


if TYPE_CHECKING:

    def _fulfils(adapter: KueueAdapter) -> tuple[ClusterAdapter, QueuePolicies, QueuePolicyChanges, Withdrawing]:
        return adapter, adapter, adapter, adapter
