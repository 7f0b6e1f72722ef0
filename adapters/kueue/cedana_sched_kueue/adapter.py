"""Kueue's implementation of the adapter contract: pending evictions as signals, and their release.

The admission webhook holds Kueue's suspension of a Job by the PreemptionHold; the release is an annotation on the Job,
which the webhook checks, and whose write makes Kueue retry at once.

A terminating pod waits in its preStop hook until its Job's eviction is signalled, or until this adapter releases the
pod because it is not evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import structlog

from cedana_sched.adapter.cluster_contract import ClusterAccess, ClusterAdapter, QueuePolicies, Withdrawing
from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.adapter.protected_pods import mark_not_preempted
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import JOBS
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
from cedana_sched_kueue.job_workloads import own_uid, owner_uid, owning_job_uid, workloads_of_job
from cedana_sched_kueue.objects import WORKLOADS, Job, Workload
from cedana_sched_kueue.preemptions import ADAPTER, EvictionDetector, KueueReport, job_uid_of_signal
from cedana_sched_kueue.unheld_evictions import awaits_confirmation, is_evicted, is_suspended

T = TypeVar("T", bound=HasMetadata)
log = structlog.get_logger(__name__)


class KueueAdapter:
    """Adapter for Jobs that Kueue manages."""

    name: ClassVar[str] = ADAPTER

    def __init__(self, cluster: ClusterAccess) -> None:
        self._api = cluster.api
        self._pods = cluster.pods
        self._served = cluster.served
        self._jobs = Informer(Watch(cluster.api, JOBS, Job, within=cluster.served), cluster.record_unreadable)
        # includes Workloads in unserved namespaces, which wait for our AdmissionCheck all the same
        self._workloads = Informer(Watch(cluster.api, WORKLOADS, Workload), cluster.record_unreadable)
        self._synced = asyncio.Event()
        self._readers: ReportFanout[KueueReport] = ReportFanout()
        self._annotating = WorkQueue("annotation of a Job", self._correct_hold_annotation)
        self._answering = WorkQueue("answer to a pod that is being deleted", self._release_unevicted_pod)
        self._admission = AdmissionCheckController(
            cluster.api, self._workloads, cluster.snapshots, cluster.record_unreadable, cluster.served
        )
        self._preemptions = EvictionDetector(
            jobs=Index(own_uid, self._jobs),
            workloads=Index(own_uid, self._workloads),
            workloads_of=Index(owning_job_uid, self._workloads),
            pods_of=Index(owner_uid, cluster.pods),
            policies=cluster.policies,
            clock=SERVER_TIME.seconds,
        )
        self._jobs.subscribe(lambda before, now: self._publish_reports_of_changed(own_uid, before, now))
        self._workloads.subscribe(lambda before, now: self._publish_reports_of_changed(owning_job_uid, before, now))
        self._pods.subscribe(self._on_pod_change)

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Construct it; makes no API call."""
        return cls(cluster)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """See `adapter.cluster_contract.Watching`."""
        return (self._jobs, self._workloads, *self._admission.informers)

    async def run(self) -> None:
        """Run the informers and reconcile AdmissionChecks, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._jobs.run(), name="Jobs")
            await self._jobs.synced.wait()  # first: an older Workload beside a newer Job looks like an eviction
            group.create_task(self._workloads.run(), name="Workloads")
            await self._workloads.synced.wait()
            group.create_task(self._admission.run(), name="admission checks")
            for informer in self._admission.informers:  # they determine the policy of a victim's queue
                await informer.synced.wait()
            await self._pods.synced.wait()
            await self._load_earlier_victims()
            self._synced.set()
            for job in self._jobs:
                self._publish_job_reports(job.metadata.uid)
            for pod in self._pods:
                self._on_pod_change(None, pod)
            group.create_task(self._annotating.run(), name="annotations of Jobs")
            group.create_task(self._answering.run(), name="answers to pods")

    async def reports(self) -> AsyncIterator[KueueReport]:
        """Report what is pending, then changes, until the reader stops."""
        await self._synced.wait()
        with self._readers.subscribed_queue(self._preemptions.pending_reports()) as queue:
            for report in await self._find_missed_cancellations():
                yield report
            while True:
                yield await queue.get()

    async def release(self, release: Release) -> None:
        """Allow Kueue to suspend the Job, whatever the verdicts: Kueue cannot choose another victim.

        A cancelled eviction gets no annotation: it would release the next eviction.

        Raises:
            RetryableError: the API server was unavailable.
        """
        await self._synced.wait()
        job_uid = job_uid_of_signal(release.signal_uid)
        job, name = self._preemptions.find_job(job_uid), hold_name(release.signal_uid)
        if job is None:
            await self._release_unserved(job_uid, name)
        still_to_stop = job is not None and not job.spec.suspend and not job.ended
        taken_back = set(release.verdicts.values()) == {Verdict.NOT_NEEDED} and not self._preemptions.pending_eviction(
            job_uid
        )
        if (
            job is not None
            and still_to_stop
            and not taken_back
            and job.metadata.annotations.get(names.RELEASED_HOLD) != name
        ):
            await self._write_hold_annotation(job.metadata, name)
            log.info("released", preemption=release.signal_uid, namespace=job.metadata.namespace, job=job.metadata.name)
        self._preemptions.on_released(release.signal_uid)

    def queue_policy(self, pod: Pod) -> str | None:
        """See `QueuePolicies`: by the current check, through which Kueue admitted the pod's Job."""
        workloads = self._preemptions.workloads_of(owner_uid(pod) or "", pod.metadata.namespace)
        return self._admission.policy_of(workloads[0]) if workloads else None

    async def withdraw(self) -> None:
        """See `adapter.cluster_contract.Withdrawing`."""
        await withdraw_checks(self._api)

    def _publish_reports_of_changed(self, uid_of: Callable[[T], str | None], *changed: T | None) -> None:
        for uid in {uid_of(one) for one in changed if one is not None}:
            if uid is not None:
                self._publish_job_reports(uid)

    def _publish_job_reports(self, job_uid: str) -> None:
        if not self._synced.is_set():
            return
        for report in self._preemptions.reports_due(job_uid):
            self._readers.publish(report)
        if self._preemptions.annotation_correction(job_uid)[0]:
            self._annotating.add(job_uid)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Process a terminating pod, which may indicate an eviction that was not held."""
        if now is None or not awaits_confirmation(now) or (before is not None and awaits_confirmation(before)):
            return
        if (job_uid := owner_uid(now)) is not None:
            self._publish_job_reports(job_uid)
            self._answering.add(f"{now.metadata.namespace}/{now.metadata.name}")

    async def _release_unevicted_pod(self, pod_key: str) -> None:
        """Release a pod that Kueue does not evict; based on current objects, because the caches may be stale."""
        namespace, _, name = pod_key.partition("/")
        pod = self._pods.get(name, namespace)
        if pod is None or not awaits_confirmation(pod) or (job_uid := owner_uid(pod)) is None:
            return
        if pod.status.phase == "Running" and (
            self._preemptions.is_evicted(job_uid, namespace) or await self._is_evicted(pod, job_uid)
        ):
            return
        await mark_not_preempted(self._api, pod)

    async def _is_evicted(self, pod: Pod, job_uid: str) -> bool:
        """Whether the pod's Job is evicted; Kueue sets the Workload's condition, then suspends, then pods are deleted.

        Raises:
            ApiError: the API server cannot answer now.
        """
        owner = pod.metadata.controller_reference
        job = await self._api.find(JOBS, owner.name if owner is not None else "", pod.metadata.namespace, into=Job)
        if job is None or job.metadata.uid != job_uid or not is_suspended(job):
            return False
        return any(map(is_evicted, (await self._fetch_current_workloads(job))[:1]))

    async def _fetch_current_workloads(self, job: Job) -> list[Workload]:
        """Return Kueue's current Workloads of a Job: the cached ones if any still exist."""
        same = self._preemptions.workloads_of(job.metadata.uid, job.metadata.namespace)
        known = [one.metadata for one in same]
        found = [await self._api.find(WORKLOADS, one.name, one.namespace, into=Workload) for one in known]
        if left := workloads_of_job(job.metadata, filter(None, found)):
            return left
        listed, _ = await self._api.list_all(WORKLOADS, job.metadata.namespace, into=Workload)
        return workloads_of_job(job.metadata, listed)

    async def _correct_hold_annotation(self, job_uid: str) -> None:
        needed, name = self._preemptions.annotation_correction(job_uid)
        job = self._preemptions.find_job(job_uid)
        if needed and job is not None:
            await self._write_hold_annotation(job.metadata, name)
            what = "nothing to hold" if name else "release of an earlier hold removed"
            log.info(what, namespace=job.metadata.namespace, job=job.metadata.name)

    async def _release_unserved(self, job_uid: str, name: str) -> None:
        """Release a Job in a namespace excluded meanwhile: without a change of the Job, Kueue's backoff grows."""
        for workload in self._preemptions.workloads_owned_by(job_uid):
            namespace, owner = workload.metadata.namespace, workload.metadata.controller_reference
            if owner is not None and not self._served.includes(namespace) and is_evicted(workload):
                await self._write_hold_annotation(Metadata(owner.name, namespace, job_uid), name)

    async def _write_hold_annotation(self, metadata: Metadata, name: str | None) -> None:
        """Set or remove the annotation on this very Job; a deleted Job needs none."""
        patch = {"metadata": {"uid": metadata.uid, "annotations": {names.RELEASED_HOLD: name}}}
        try:
            await self._api.patch(JOBS, metadata.name, metadata.namespace, patch)
        except AbsentError:
            return
        except ConflictError as error:
            message = f"Job {metadata.namespace}/{metadata.name} is another one, or was changed meanwhile"
            raise RetryableError(message, remedy="it is tried again") from error

    async def _load_earlier_victims(self) -> None:
        """Load victims signalled before this run: other pods of the same Job may still need a signal."""
        try:
            told = await released_victims_by_signal(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read: who comes late to one is not saved", error=error.message)
            return
        for signal_uid, victims in told.items():
            self._preemptions.record_earlier_signal(signal_uid, victims)

    async def _find_missed_cancellations(self) -> list[PreemptionCancelled]:
        """Return cancellations of holds whose Jobs Kueue stopped evicting while no coordinator led."""
        try:
            standing = await unreleased_signal_uids(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read; they end at their deadlines", error=error.message)
            return []
        return [PreemptionCancelled(uid, "Kueue no longer evicts it") for uid in standing if self._is_stale(uid)]

    def _is_stale(self, signal_uid: str) -> bool:
        job_uid = job_uid_of_signal(signal_uid)
        job, eviction = self._preemptions.find_job(job_uid), self._preemptions.pending_eviction(job_uid)
        if eviction is not None:
            return eviction.uid != signal_uid
        if job is None:
            return True
        # suspended: the eviction went through, and other reports cover its pods' ends. Kueue also stops a Job without a
        # Workload, and an unreadable Workload proves nothing
        return not job.spec.suspend and bool(self._preemptions.workloads_of(job_uid, job.metadata.namespace))


if TYPE_CHECKING:

    def _fulfils(adapter: KueueAdapter) -> tuple[ClusterAdapter, QueuePolicies, Withdrawing]:
        return adapter, adapter, adapter
