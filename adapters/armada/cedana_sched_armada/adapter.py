"""Armada's implementation of the adapter contract: preemptions as signals, and resubmission of preempted jobs.

Armada makes no call before it preempts, and its deletion of a pod cannot be refused indefinitely; the pod's preStop
hook holds it, in which the node's agent waits until events distinguish a preemption from a cancellation. Nothing must
be released in Armada: the release resubmits the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import structlog

from cedana_sched.adapter.cluster_contract import (
    ClusterAccess,
    ClusterAdapter,
    Diagnosing,
    Gangs,
    OptedInSink,
    OptingIn,
)
from cedana_sched.adapter.contract import HoldsEvictions
from cedana_sched.adapter.protected_pods import mark_not_preempted
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.diagnostic_findings import Finding
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.model.preemption import Release, Signal
from cedana_sched.retrying import retry
from cedana_sched_armada import doctor_checks, metrics
from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaError, ArmadaUntrustedError
from cedana_sched_armada.events import JobEvent, JobSet
from cedana_sched_armada.job_history_queries import fetch_submissions_of_jobs
from cedana_sched_armada.job_of_pod import gang_of
from cedana_sched_armada.job_pod_index import JobPodIndex
from cedana_sched_armada.job_sets import JobSetWatcher
from cedana_sched_armada.ledger import Ledger, Member, OpenPreemption
from cedana_sched_armada.preemption_tracker import ArmadaReport, PreemptionTracker
from cedana_sched_armada.queue_opt_in import QueueOptIn
from cedana_sched_armada.resubmission import Outcome, Resubmitter, manual_resubmission_hint
from cedana_sched_armada.retried_tasks import RetriedTasks
from cedana_sched_armada.settings import ArmadaSettings
from cedana_sched_armada.signals import ADAPTER
from cedana_sched_armada.unexplained_deletions import UnexplainedDeletions

log = structlog.get_logger(__name__)

_EVENT_REASONS: dict[type[CedanaSchedError], str] = {
    ArmadaDeniedError: "ArmadaDenied",
    ArmadaUntrustedError: "ArmadaCertificateInvalid",
    UsageError: "ArmadaDenied",  # a credential file, or a job set's name
}
"""Reasons of Events for watch failures on which a user must act."""


class ArmadaAdapter:
    """Adapter for Armada's jobs with pods in this cluster.

    Args:
        cluster: shared access of the coordinator.
        settings: Armada's address and our credentials.
        clock: seconds since the epoch.
        sleep: for so many seconds.
    """

    name: ClassVar[str] = ADAPTER

    def __init__(
        self,
        cluster: ClusterAccess,
        settings: ArmadaSettings,
        clock: Callable[[], float] = SERVER_TIME.seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._opt_in = QueueOptIn(settings.queues, cluster.served)
        self._ledger = Ledger(cluster.notes)
        self._chores = RetriedTasks()
        self._preemptions = PreemptionTracker(
            pods=JobPodIndex(cluster.pods, self._start_pod_release),
            ledger=self._ledger,
            policies=cluster.policies,
            settings=settings,
            clock=clock,
            effects=self,
        )
        self._doubts = UnexplainedDeletions(self._preemptions.open_doubtful_case, clock)
        self._readers: ReportFanout[ArmadaReport] = ReportFanout()
        self._ready = asyncio.Event()
        self._job_sets: JobSetWatcher | None = None
        self._resubmissions: Resubmitter | None = None

    @classmethod
    def connect(cls, cluster: ClusterAccess) -> Self:
        """Construct it; makes no call.

        Raises:
            UsageError: the section `armada` of the coordinator's file is missing or invalid.
        """
        return cls(cluster, ArmadaSettings.read(cluster.settings))

    @classmethod
    async def diagnose(cls, api: Api) -> list[Finding]:
        """See `Diagnosing`."""
        return await doctor_checks.diagnose_cluster(api)

    async def run(self) -> None:
        """Watch the job sets, forever."""
        await self._cluster.pods.synced.wait()
        await retry("notes of the Armada adapter", self._ledger.load, CedanaSchedError)
        async with ArmadaClient.open(self._settings) as server:
            self._job_sets = JobSetWatcher(
                server,
                self._cluster.pods,
                self._ledger,
                self._settings.opts_in,
                on_event=self._on_event,
                on_watch_failed=self._on_watch_failed,
                clock=self._clock,
            )
            self._resubmissions = Resubmitter(
                server,
                self._ledger,
                self._settings,
                self._cluster.snapshots,
                catch_up=self._job_sets.catch_up,
                on_ended=self._on_preemption_concluded,
                on_refused=self._on_resubmission_refused,
                clock=self._clock,
                sleep=self._sleep,
            )
            self._server = server
            self._preemptions.resume_recorded_preemptions()
            sinks = self._preemptions.on_pod_change, self._doubts.on_pod_change
            for sink in sinks:
                self._cluster.pods.subscribe(sink)
                for pod in self._cluster.pods:  # changes since before the subscription
                    sink(pod, pod)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._ledger.run(), name="notes of the Armada adapter")
                    group.create_task(self._chores.run(), name="chores of the Armada adapter")
                    group.create_task(self._job_sets.run(), name="job sets of Armada")
                    self._ready.set()
            finally:
                self._ready.clear()
                self._doubts.stop()
                for sink in sinks:
                    self._cluster.pods.unsubscribe(sink)

    def gang_of(self, pod: Pod) -> str | None:
        """See `adapter.cluster_contract.Gangs`."""
        gang = gang_of(pod)
        return None if gang is None else f"{gang.queue}/{gang.id}"

    def opt_in_annotations(self, pod: Object) -> Mapping[str, str]:
        """See `adapter.cluster_contract.OptingIn`."""
        return self._opt_in.annotations_for(pod)

    def on_more_opted_in(self, sink: OptedInSink) -> None:
        """See `adapter.cluster_contract.OptingIn`: its queues are settings, which do not change."""

    async def reports(self) -> AsyncIterator[ArmadaReport]:
        """Report what is pending, then changes, until the reader stops."""
        await self._ready.wait()
        with self._readers.subscribed_queue(self._preemptions.pending_reports()) as queue:
            while True:
                yield await queue.get()

    async def hold(self, signal: Signal) -> float | None:
        """Return the hold's deadline, by the pods' deletions; the preStop hook already holds the pods."""
        return self._preemptions.hold_deadline(signal.uid)

    async def release(self, release: Release) -> None:
        """Resubmit the preempted job, once, if it has a snapshot.

        Raises:
            ArmadaError: the outcome is unknown, or a user must act first.
        """
        await self._ready.wait()
        if self._resubmissions is not None:
            await self._resubmissions.conclude_preemption(release.signal_uid, release.verdicts)

    def report(self, report: ArmadaReport) -> None:
        """See `preemption_tracker.Effects`, also for the following methods."""
        self._readers.publish(report)

    def start_unreported_conclusion(self, uid: str) -> None:
        self._chores.start(f"end of preemption {uid}", lambda: self._conclude_unreported_preemption(uid))

    def cancel_surplus_job(self, job_set: JobSet, job: str) -> None:
        log.error("two jobs in one place; the later one is cancelled", job=job, job_set=str(job_set))
        reason = "cedana-sched: another job takes the same place"
        self._chores.start(f"cancellation of job {job}", lambda: self._server.cancel(job_set, job, reason))

    def start_namespace_lookup(self, job_set: JobSet, event: JobEvent) -> None:
        log.warning("pods of several namespaces say that they are of one job", job=event.job, job_set=str(job_set))
        self._chores.start(f"namespace of job {event.job}", lambda: self._look_up_namespace(job_set, event))

    async def _look_up_namespace(self, job_set: JobSet, event: JobEvent) -> None:
        jobs = await fetch_submissions_of_jobs(self._server, job_set, {event.job})
        self._preemptions.on_namespace_found(job_set, event, jobs[event.job].namespace)

    def _start_pod_release(self, pod: Pod) -> None:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._chores.start(
            f"release of pod {name} {pod.metadata.uid}", lambda: mark_not_preempted(self._cluster.api, pod)
        )

    async def _conclude_unreported_preemption(self, uid: str) -> None:
        if self._resubmissions is not None:
            await self._resubmissions.conclude_preemption(uid, {})

    def _on_event(self, job_set: JobSet, event: JobEvent, missed: bool) -> None:  # noqa: FBT001 - JobSets' callback
        self._preemptions.process_event(job_set, event, missed=missed)

    def _on_preemption_concluded(self, case: OpenPreemption, outcome: Outcome) -> None:
        """Publish on the pods what happened to their jobs."""
        self._preemptions.stop_reporting(case.uid)
        for member in case.members:
            successor = outcome.successors.get(member.job)
            if successor is not None:
                metrics.PREEMPTED.labels("resubmitted").inc()
                log.info("resubmitted", preemption=case.uid, job=member.job, successor=successor)
                text = f"Armada job {member.job} was preempted and is submitted again as job {successor}"
            elif outcome.why_none and (outcome.given_up or not case.doubtful):
                metrics.PREEMPTED.labels("left").inc()
                ended = "was ended" if case.doubtful else "was preempted"
                text = f"Armada job {member.job} {ended} and is not submitted again: {outcome.why_none}"
                if outcome.given_up:
                    text += manual_resubmission_hint(member, self._cluster.snapshots)
                log.warning("not resubmitted", preemption=case.uid, job=member.job, reason=text)
            else:
                continue
            reason = "Resubmitted" if successor is not None else "NotResubmitted"
            self._record_pod_event(member, reason, text, warning=successor is None)
        if self._job_sets is not None:
            self._job_sets.start_or_stop_watch(case.job_set)

    def _on_resubmission_refused(self, case: OpenPreemption, error: ArmadaError) -> None:
        """Publish on the pods why their jobs are not resubmitted yet; the coordinator publishes that for held ones."""
        for member in case.members if not case.has_state_to_save else ():
            text = f"Armada job {member.job} was preempted and cannot be submitted again yet, retrying: {error}"
            self._record_pod_event(member, "ResubmissionFailed", text, warning=True)

    def _record_pod_event(self, member: Member, reason: str, text: str, *, warning: bool) -> None:
        if member.pod:
            involved = PODS.reference(member.pod, member.namespace, member.pod_uid)
            self._cluster.events.record_event(ObjectEvent(involved, reason, text, warning=warning))

    def _on_watch_failed(self, pods: tuple[Pod, ...], error: CedanaSchedError) -> None:
        """Publish failures on which a user must act, on the pods that are not saved because of them."""
        reason = _EVENT_REASONS.get(type(error))
        if reason is None:
            return
        for pod in pods:
            if not pod.finished:
                involved = PODS.reference(pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
                text = f"Preemptions cannot be followed: {error}"
                self._cluster.events.record_event(ObjectEvent(involved, reason, text, warning=True))


if TYPE_CHECKING:

    def _fulfils(adapter: ArmadaAdapter) -> tuple[ClusterAdapter, OptingIn, Diagnosing, Gangs]:
        return adapter, adapter, adapter, adapter

    def _holds(adapter: ArmadaAdapter) -> HoldsEvictions:
        return adapter
