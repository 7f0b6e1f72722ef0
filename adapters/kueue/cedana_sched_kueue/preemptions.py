"""Detects Kueue's pending evictions of Jobs from caches, without I/O.

Kueue sets `Evicted=True` on a Workload, whatever the cause, and then suspends its Job; the admission webhook refuses
that suspension until the release. So an eviction is pending while its Workload is evicted and its Job still runs, or,
if no webhook answered, while its pods wait in their preStop hooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.adapter.protected_pods import identity_of, workload_of
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import JOBS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.preemption import HeldObject, Signal, Victim
from cedana_sched_kueue.job_workloads import workloads_of_job
from cedana_sched_kueue.objects import EVICTED, FINISHED, PREEMPTED, Job, Workload
from cedana_sched_kueue.template_identity import has_user_id
from cedana_sched_kueue.unheld_evictions import is_evicted, is_prestop_waiting, is_suspended

log = structlog.get_logger(__name__)

ADAPTER = "kueue"
KueueReport = Preempted | PreemptionCancelled

_PREEMPTOR = re.compile(r"\(UID: ([^,)]+), JobUID: ")
"""Matches the message of `Preempted`, since Kueue 0.9 (pkg/scheduler/preemption, preemptionMessage)."""
_UNKNOWN = "UNKNOWN"
_LATER = "~"
"""In a signal's uid: separates the eviction from the pod that caused a further signal."""


class Eviction(msgspec.Struct, frozen=True):
    """A stop of a running Job that Kueue decided. `uid` is the signal's."""

    uid: str
    workload: Workload
    job: Job


def eviction_of(workload: Workload, job: Job | None) -> Eviction | None:
    """Return the pending eviction, if any: a suspended or ended Job is already stopped."""
    evicted = workload.find_true_condition(EVICTED)
    if evicted is None or workload.find_true_condition(FINISHED) is not None:
        return None
    if job is None or job.spec.suspend or job.ended:
        return None
    return Eviction(f"{job.metadata.uid}@{evicted.last_transition_time}", workload, job)


def eviction_uid_of_signal(signal_uid: str) -> str:
    """Return the eviction of a signal: also the uid of its first signal; later pods get further signals."""
    return signal_uid.partition(_LATER)[0]


def job_uid_of_signal(signal_uid: str) -> str:
    """Return the Job of a signal."""
    return signal_uid.partition("@")[0]


class EvictionDetector:
    """Reports new and cancelled evictions of Jobs, one Job at a time, and pending ones.

    State is limited to what was reported; after a restart, the same evictions have the same uids. A hold that is over
    by then gets no further victims: see `record_earlier_signal`.

    Args:
        jobs: by their uid.
        workloads: by their uid.
        workloads_of: the same Workloads by `job_workloads.owning_job_uid`.
        pods_of: protected pods by the uid of their Job.
        policies: of the cluster.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        jobs: Index[str, Job],
        workloads: Index[str, Workload],
        workloads_of: Index[str, Workload],
        pods_of: Index[str, Pod],
        policies: Policies,
        clock: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._workloads = workloads
        self._by_job = workloads_of
        self._pods_of = pods_of
        self._policies = policies
        self._clock = clock
        self._told: dict[str, Signal] = {}
        """By uid of the Job: signals neither released nor cancelled."""
        self._over: dict[str, str] = {}
        """By uid of the Job: the last eviction that is over; only later pods can still cause signals."""
        self._victims_of: dict[str, tuple[str, frozenset[str]]] = {}
        """By uid of the Job: its last signalled eviction, and the uids of all its signalled pods."""

    def record_earlier_signal(self, signal_uid: str, victims: frozenset[str]) -> None:
        """Register a signal from before a restart whose hold is over. `victims` are uids of pods."""
        job_uid, eviction_uid = job_uid_of_signal(signal_uid), eviction_uid_of_signal(signal_uid)
        latest, known = self._victims_of.get(job_uid, ("", frozenset()))
        if eviction_uid >= latest:  # they differ in the time of the eviction
            told = known | victims if eviction_uid == latest else victims
            self._victims_of[job_uid] = (eviction_uid, told)

    def pending_reports(self) -> tuple[Preempted, ...]:
        """Return every signal that is not over."""
        return tuple(map(Preempted, self._told.values()))

    def find_job(self, uid: str) -> Job | None:
        """Return the Job of this uid while it exists."""
        return self._jobs.unique_object_of(uid)

    def workloads_of(self, job_uid: str, namespace: str) -> list[Workload]:
        """See `workloads_of_job`; works for an uncached Job, too."""
        job = self.find_job(job_uid)
        metadata = Metadata("", namespace, job_uid) if job is None else job.metadata
        return workloads_of_job(metadata, self._by_job.objects_of(job_uid)) if metadata.namespace == namespace else []

    def workloads_owned_by(self, job_uid: str) -> tuple[Workload, ...]:
        """Return Workloads of any namespace that have the Job as owner."""
        return self._by_job.objects_of(job_uid)

    def _find_workload_of_job(self, job: Job | None) -> Workload | None:
        """Return Kueue's Workload of a Job."""
        found = [] if job is None else self.workloads_of(job.metadata.uid, job.metadata.namespace)
        return next(iter(found), None)

    def _list_pods_of_job(self, job: Job) -> list[Pod]:
        """Return its pods, excluding those of other namespaces, which may claim any owner."""
        owned = self._pods_of.objects_of(job.metadata.uid)
        return [pod for pod in owned if pod.metadata.namespace == job.metadata.namespace]

    def pending_eviction(self, job_uid: str) -> Eviction | None:
        """Return the pending eviction of this Job."""
        job = self.find_job(job_uid)
        workload = self._find_workload_of_job(job)
        return None if workload is None else eviction_of(workload, job)

    def reports_due(self, job_uid: str) -> tuple[KueueReport, ...]:
        """Return what to report now about this Job; idempotent."""
        eviction, told = self.pending_eviction(job_uid), self._told.get(job_uid)
        if eviction is None and told is None:
            eviction = self._unheld_eviction(job_uid)
        if eviction is not None:
            if told is not None and told.uid == eviction.uid:
                return ()
            return (
                *self._cancellation_reports(job_uid, "Kueue evicts it anew"),
                *self._reports_of_eviction(job_uid, eviction),
            )
        job = self.find_job(job_uid)
        if job is None:
            self._over.pop(job_uid, None)
            self._victims_of.pop(job_uid, None)
            return self._cancellation_reports(job_uid, "its Job was deleted")
        if told is None:
            return ()
        if job.ended:
            return self._cancellation_reports(job_uid, "its Job has ended")
        if job.spec.suspend:  # the eviction went through; other reports cover its pods' ends
            self._record_signal_over(job_uid, told.uid)
            return ()
        workload = self._find_workload_of_job(job)
        if workload is None:  # Kueue also stops a Job without a Workload (jobframework, NoMatchingWorkload)
            return ()
        return self._cancellation_reports(job_uid, f"Kueue no longer evicts Workload {workload.metadata.name}")

    def is_evicted(self, job_uid: str, namespace: str) -> bool:
        """Whether Kueue evicts this Job, according to the cache."""
        return any(map(is_evicted, self.workloads_of(job_uid, namespace)[:1]))

    def _unheld_eviction(self, job_uid: str) -> Eviction | None:
        """Return this Job's eviction that was not held, while pods without a signal still wait.

        If no webhook answered, all pods wait. Otherwise those that were being restored when Kueue evicted their Job:
        there was nothing to save then, and they have run since.
        """
        job = self.find_job(job_uid)
        if job is None or not is_suspended(job):
            return None
        workload = self._find_workload_of_job(job)
        if workload is None or not is_evicted(workload) or (evicted := workload.find_true_condition(EVICTED)) is None:
            return None
        uid, now = f"{job_uid}@{evicted.last_transition_time}", self._clock()
        told = self._signaled_pod_uids(uid)
        asking = (pod.metadata.uid for pod in self._list_pods_of_job(job) if is_prestop_waiting(pod, now))
        first = min((pod_uid for pod_uid in asking if pod_uid not in told), default=None)
        if first is None:
            return None
        return Eviction(f"{uid}{_LATER}{first}" if told else uid, workload, job)

    def _signaled_pod_uids(self, signal_uid: str) -> frozenset[str]:
        """Return the uids of pods signalled for this eviction, by any of its signals."""
        uid, victims = self._victims_of.get(job_uid_of_signal(signal_uid), ("", frozenset()))
        return victims if uid == eviction_uid_of_signal(signal_uid) else frozenset()

    def on_released(self, signal_uid: str) -> None:
        """Stop reporting this signal."""
        self._record_signal_over(job_uid_of_signal(signal_uid), signal_uid)

    def annotation_correction(self, job_uid: str) -> tuple[bool, str | None]:
        """Return whether the annotation `names.RELEASED_HOLD` must change without the coordinator, and to which value.

        An eviction that saves nothing is released at once, because the webhook may already hold it. The annotation of
        an earlier hold is removed, because it would release the next eviction.
        """
        job = self.find_job(job_uid)
        if job is None or job.spec.suspend or job.ended or self._find_workload_of_job(job) is None:
            return False, None
        now = job.metadata.annotations.get(names.RELEASED_HOLD)
        eviction = self.pending_eviction(job_uid)
        if eviction is None:
            return now is not None, None
        name = hold_name(eviction.uid)
        if job_uid in self._told:
            return now not in {None, name}, None
        return now != name and has_user_id(job.spec.template), name

    def _reports_of_eviction(self, job_uid: str, eviction: Eviction) -> tuple[KueueReport, ...]:
        if not eviction.job.spec.suspend:
            if self._over.get(job_uid) == eviction.uid:  # the Workload's event is older than the Job's
                return ()
            if eviction.job.metadata.annotations.get(names.RELEASED_HOLD) == hold_name(eviction.uid):
                self._record_signal_over(job_uid, eviction.uid)  # released before a restart
                return ()
        signal = self._build_signal(eviction)
        if not signal.victims:
            self._record_signal_over(job_uid, eviction.uid)
            return ()
        self._told[job_uid] = signal
        told = self._signaled_pod_uids(signal.uid) | {victim.workload.uid for victim in signal.victims}
        self._victims_of[job_uid] = (eviction_uid_of_signal(signal.uid), told)
        return (Preempted(signal),)

    def _cancellation_reports(self, job_uid: str, why: str) -> tuple[KueueReport, ...]:
        told = self._told.get(job_uid)
        if told is None:
            return ()
        self._record_signal_over(job_uid, told.uid)
        return (PreemptionCancelled(told.uid, why),)

    def _record_signal_over(self, job_uid: str, signal_uid: str) -> None:
        told = self._told.get(job_uid)
        if told is not None and told.uid == signal_uid:
            del self._told[job_uid]
        if self.find_job(job_uid) is not None:
            self._over[job_uid] = eviction_uid_of_signal(signal_uid)

    def _build_signal(self, eviction: Eviction) -> Signal:
        workload, job = eviction.workload, eviction.job
        reason, preemptor_uid = reason_and_preemptor_of(workload)
        told = self._signaled_pod_uids(eviction.uid)
        pods = [pod for pod in self._pods_to_save(job) if pod.metadata.uid not in told]
        return Signal(
            uid=eviction.uid,
            adapter=ADAPTER,
            victims=tuple(self._build_victims(workload, pods)),
            reason=reason,
            not_after=min((ends for pod in pods if (ends := pod.metadata.deletion_deadline) is not None), default=None),
            observed_at=self._clock(),
            preemptor=self._preemptor_name(preemptor_uid, job.metadata.namespace) if preemptor_uid else None,
            release_group=preemptor_uid,
            held=HeldObject(JOBS.group_version, JOBS.kind, job.metadata.namespace, job.metadata.name, job.metadata.uid),
        )

    def _preemptor_name(self, preemptor_uid: str, to_namespace: str) -> str:
        """Return the preemptor's name if its victims may read it; Kueue discloses only its uid to another namespace."""
        preemptor = self._workloads.unique_object_of(preemptor_uid)
        if preemptor is None or preemptor.metadata.namespace != to_namespace:
            return preemptor_uid
        return f"{preemptor.metadata.namespace}/{preemptor.metadata.name}"

    def _pods_to_save(self, job: Job) -> list[Pod]:
        """Return its running pods; of terminating ones those whose preStop hook still waits."""
        running = (pod for pod in self._list_pods_of_job(job) if pod.status.phase == "Running")
        now = self._clock()
        return [pod for pod in running if pod.metadata.deletion_timestamp is None or is_prestop_waiting(pod, now)]

    def _build_victims(self, workload: Workload, pods: Iterable[Pod]) -> Iterable[Victim]:
        for pod in sorted(pods, key=lambda pod: pod.metadata.name):
            metadata = pod.metadata
            try:
                identity = identity_of(pod)
            except (KeyError, UsageError, ValueError) as error:
                log.warning("pod is not saved", namespace=metadata.namespace, pod=metadata.name, error=str(error))
                continue
            yield Victim(
                workload=workload_of(pod),
                identity=identity,
                policy=self._policies.policy_of_pod(pod),
                gang=workload.metadata.uid,
                started_at=pod.status.started_at,
            )


def reason_and_preemptor_of(workload: Workload) -> tuple[str, str | None]:
    """Return Kueue's reason for the eviction, and the uid of the preempting Workload."""
    evicted, preempted = workload.find_true_condition(EVICTED), workload.find_true_condition(PREEMPTED)
    reason = evicted.reason if evicted else ""
    if reason != PREEMPTED or preempted is None:
        return reason, None
    found = _PREEMPTOR.search(preempted.message)
    return preempted.reason, found[1] if found and found[1] != _UNKNOWN else None
