"""Kueue seen through the contract: what it is about to stop, and how it is let go.

Kueue's suspension of a Job is held by the admission webhook, which reads the PreemptionHold; the release is an
annotation on the Job, which the webhook recognises and on which Kueue tries again at once.

A pod that is being deleted waits in its preStop hook until its Job's eviction is taken up, or until it is let go here,
because nobody evicts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import structlog

from cedana_sched.adapter.cluster import ClusterAccess, ClusterAdapter, QueuePolicies, Withdrawing
from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.adapter.pods import let_go
from cedana_sched.adapter.readers import Readers
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Metadata, Pod
from cedana_sched.kube.resources import JOBS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import HasMetadata, Informer, Watch
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.naming import hold_name
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched_kueue.abandoned import holds_that_stand, victims_let_go
from cedana_sched_kueue.admission_checks import AdmissionChecks
from cedana_sched_kueue.objects import WORKLOADS, Job, Workload
from cedana_sched_kueue.preemptions import ADAPTER, KueueReport, Preemptions, job_uid_of
from cedana_sched_kueue.records import records_of, uid_of_job
from cedana_sched_kueue.torn import is_being_asked, is_evicted, is_suspended
from cedana_sched_kueue.uids import own_uid, owner_uid
from cedana_sched_kueue.withdrawal import withdraw_checks

T = TypeVar("T", bound=HasMetadata)
log = structlog.get_logger(__name__)


class KueueAdapter:
    """Jobs that Kueue manages."""

    name: ClassVar[str] = ADAPTER

    def __init__(self, cluster: ClusterAccess) -> None:
        self._api = cluster.api
        self._pods = cluster.pods
        self._served = cluster.served
        self._jobs = Informer(Watch(cluster.api, JOBS, Job, within=cluster.served), cluster.unreadable)
        # those of Jobs that we do not serve as well, which wait for our AdmissionCheck all the same
        self._workloads = Informer(Watch(cluster.api, WORKLOADS, Workload), cluster.unreadable)
        self._synced = asyncio.Event()
        self._readers: Readers[KueueReport] = Readers()
        self._annotating = WorkQueue("annotation of a Job", self._annotate)
        self._answering = WorkQueue("answer to a pod that is being deleted", self._answer)
        self._admission = AdmissionChecks(
            cluster.api, self._workloads, cluster.snapshots, cluster.unreadable, cluster.served
        )
        self._preemptions = Preemptions(
            jobs=Index(own_uid, self._jobs),
            workloads=Index(own_uid, self._workloads),
            workloads_of=Index(uid_of_job, self._workloads),
            pods_of=Index(owner_uid, cluster.pods),
            policies=cluster.policies,
            clock=SERVER_TIME.seconds,
        )
        self._jobs.subscribe(lambda before, now: self._review_each(own_uid, before, now))
        self._workloads.subscribe(lambda before, now: self._review_each(uid_of_job, before, now))
        self._pods.subscribe(self._heard)

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Make it; nothing is asked of the API server yet."""
        return cls(cluster)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """See `adapter.cluster.Watching`."""
        return (self._jobs, self._workloads, *self._admission.informers)

    async def run(self) -> None:
        """Keep the watches, answer for the AdmissionChecks, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._jobs.run(), name="Jobs")
            await self._jobs.synced.wait()  # first: an older Workload beside a newer Job would look evicted again
            group.create_task(self._workloads.run(), name="Workloads")
            await self._workloads.synced.wait()
            group.create_task(self._admission.run(), name="admission checks")
            for informer in self._admission.informers:  # by them a victim's queue has its policy
                await informer.synced.wait()
            await self._pods.synced.wait()
            await self._remember()
            self._synced.set()
            for job in self._jobs:
                self._review(job.metadata.uid)
            for pod in self._pods:
                self._heard(None, pod)
            group.create_task(self._annotating.run(), name="annotations of Jobs")
            group.create_task(self._answering.run(), name="answers to pods")

    async def reports(self) -> AsyncIterator[KueueReport]:
        """What is pending, then what happens, until the reader goes away."""
        await self._synced.wait()
        with self._readers.reading(self._preemptions.pending()) as queue:
            for report in await self._taken_back_unseen():
                yield report
            while True:
                yield await queue.get()

    async def release(self, release: Release) -> None:
        """Let Kueue suspend the Job, whatever the verdicts are: it cannot be asked for another victim.

        What Kueue has taken back needs no mark: it would let the next eviction through.

        Raises:
            RetryableError: the API server could not be told.
        """
        await self._synced.wait()
        job_uid = job_uid_of(release.signal_uid)
        job, name = self._preemptions.job(job_uid), hold_name(release.signal_uid)
        if job is None:
            await self._release_unserved(job_uid, name)
        still_to_stop = job is not None and not job.spec.suspend and not job.ended
        taken_back = set(release.verdicts.values()) == {Verdict.NOT_NEEDED} and not self._preemptions.eviction(job_uid)
        if (
            job is not None
            and still_to_stop
            and not taken_back
            and job.metadata.annotations.get(names.RELEASED_HOLD) != name
        ):
            await self._mark(job.metadata, name)
            log.info("released", preemption=release.signal_uid, namespace=job.metadata.namespace, job=job.metadata.name)
        self._preemptions.released(release.signal_uid)

    def queue_policy(self, pod: Pod) -> str | None:
        """See `adapter.cluster.QueuePolicies`: as our check says now, by which Kueue has admitted the pod's Job."""
        workloads = self._preemptions.workloads_of(owner_uid(pod) or "", pod.metadata.namespace)
        return self._admission.policy_of(workloads[0]) if workloads else None

    async def withdraw(self) -> None:
        """See `adapter.cluster.Withdrawing`."""
        await withdraw_checks(self._api)

    def _review_each(self, uid_of: Callable[[T], str | None], *changed: T | None) -> None:
        for uid in {uid_of(one) for one in changed if one is not None}:
            if uid is not None:
                self._review(uid)

    def _review(self, job_uid: str) -> None:
        if not self._synced.is_set():
            return
        for report in self._preemptions.review(job_uid):
            self._readers.publish(report)
        if self._preemptions.annotation(job_uid)[0]:
            self._annotating.add(job_uid)

    def _heard(self, before: Pod | None, now: Pod | None) -> None:
        """A pod that is being deleted may tell of an eviction that nobody held."""
        if now is None or not is_being_asked(now) or (before is not None and is_being_asked(before)):
            return
        if (job_uid := owner_uid(now)) is not None:
            self._review(job_uid)
            self._answering.add(f"{now.metadata.namespace}/{now.metadata.name}")

    async def _answer(self, pod_key: str) -> None:
        """Let a pod go that Kueue does not evict; by what is written now, for our watches may be behind."""
        namespace, _, name = pod_key.partition("/")
        pod = self._pods.get(name, namespace)
        if pod is None or not is_being_asked(pod) or (job_uid := owner_uid(pod)) is None:
            return
        if pod.status.phase == "Running" and (
            self._preemptions.is_evicted(job_uid, namespace) or await self._is_evicted(pod, job_uid)
        ):
            return
        await let_go(self._api, pod)

    async def _is_evicted(self, pod: Pod, job_uid: str) -> bool:
        """A Job is suspended before its pods are deleted, and its Workload says why before that.

        Raises:
            ApiError: nobody can say now.
        """
        owner = pod.metadata.owner
        job = await self._api.find(JOBS, owner.name if owner is not None else "", pod.metadata.namespace, into=Job)
        if job is None or job.metadata.uid != job_uid or not is_suspended(job):
            return False
        return any(map(is_evicted, (await self._workloads_now(job))[:1]))

    async def _workloads_now(self, job: Job) -> list[Workload]:
        """Kueue's records of a Job, as they are written now; those that we know, if any are left."""
        same = self._preemptions.workloads_of(job.metadata.uid, job.metadata.namespace)
        known = [one.metadata for one in same]
        found = [await self._api.find(WORKLOADS, one.name, one.namespace, into=Workload) for one in known]
        if left := records_of(job.metadata, filter(None, found)):
            return left
        listed, _ = await self._api.list_all(WORKLOADS, job.metadata.namespace, into=Workload)
        return records_of(job.metadata, listed)

    async def _annotate(self, job_uid: str) -> None:
        needed, name = self._preemptions.annotation(job_uid)
        job = self._preemptions.job(job_uid)
        if needed and job is not None:
            await self._mark(job.metadata, name)
            what = "nothing to hold" if name else "release of an earlier hold removed"
            log.info(what, namespace=job.metadata.namespace, job=job.metadata.name)

    async def _release_unserved(self, job_uid: str, name: str) -> None:
        """In a namespace that was excluded meanwhile: Kueue tries again when the Job changes, else ever later."""
        for workload in self._preemptions.naming(job_uid):
            namespace, owner = workload.metadata.namespace, workload.metadata.owner
            if owner is not None and not self._served.includes(namespace) and is_evicted(workload):
                await self._mark(Metadata(owner.name, namespace, job_uid), name)

    async def _mark(self, metadata: Metadata, name: str | None) -> None:
        """Write the annotation on this very Job, or remove it; a Job that is gone needs none."""
        patch = {"metadata": {"uid": metadata.uid, "annotations": {names.RELEASED_HOLD: name}}}
        try:
            await self._api.patch(JOBS, metadata.name, metadata.namespace, patch)
        except AbsentError:
            return
        except ConflictError as error:
            message = f"Job {metadata.namespace}/{metadata.name} is another one, or was changed meanwhile"
            raise RetryableError(message, remedy="it is tried again") from error

    async def _remember(self) -> None:
        """Who was told before this run of the coordinator: others of the same Job may still be to be told."""
        try:
            told = await victims_let_go(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read: who comes late to one is not saved", problem=error.message)
            return
        for signal_uid, victims in told.items():
            self._preemptions.told_before(signal_uid, victims)

    async def _taken_back_unseen(self) -> list[PreemptionCancelled]:
        """Holds of Jobs that Kueue has stopped evicting while nobody looked."""
        try:
            standing = await holds_that_stand(self._api, ADAPTER)
        except ApiError as error:
            log.warning("earlier holds cannot be read; they end at their deadlines", problem=error.message)
            return []
        return [PreemptionCancelled(uid, "Kueue no longer evicts it") for uid in standing if self._is_stale(uid)]

    def _is_stale(self, signal_uid: str) -> bool:
        job_uid = job_uid_of(signal_uid)
        job, eviction = self._preemptions.job(job_uid), self._preemptions.eviction(job_uid)
        if eviction is not None:
            return eviction.uid != signal_uid
        if job is None:
            return True
        # suspended: it went through, and its pods' ends are told. Kueue stops a Job without a Workload as well, and one
        # that we cannot read says nothing
        return not job.spec.suspend and bool(self._preemptions.workloads_of(job_uid, job.metadata.namespace))


if TYPE_CHECKING:

    def _fulfils(adapter: KueueAdapter) -> tuple[ClusterAdapter, QueuePolicies, Withdrawing]:
        return adapter, adapter, adapter
