"""Detects Kueue's pending evictions from caches, without I/O.

Kueue sets `Evicted=True` on a Workload, whatever the cause, and then suspends its object, a Job for one; the admission
webhook refuses that suspension until the release. So an eviction is pending while its Workload is evicted and its
object still runs, or, if no webhook answered, while its pods wait in their preStop hooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import Policies
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.adapter.mark_removal import is_running
from cedana_sched.adapter.protected_pods import identity_of, workload_of
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.index import Index
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.preemption import HeldObject, Signal, Victim
from cedana_sched_kueue.managed_objects import ManagedObject, ManagedObjects
from cedana_sched_kueue.objects import EVICTED, FINISHED, PREEMPTED, WORKLOADS, Workload
from cedana_sched_kueue.pod_workloads import PodWorkloads
from cedana_sched_kueue.unheld_evictions import is_evicted, is_prestop_waiting, is_suspended
from cedana_sched_kueue.workload_choice import workloads_of_object

log = structlog.get_logger(__name__)

ADAPTER = "kueue"
KueueReport = Preempted | PreemptionCancelled

_PREEMPTOR = re.compile(r"\(UID: ([^,)]+), JobUID: ")
"""Matches the message of `Preempted`, since Kueue 0.9 (pkg/scheduler/preemption, preemptionMessage)."""
_UNKNOWN = "UNKNOWN"
_LATER = "~"
"""In a signal's uid: separates the eviction from the pod that caused a further signal."""


class Eviction(msgspec.Struct, frozen=True):
    """A stop of a running object that Kueue decided. `uid` is the signal's."""

    uid: str
    workload: Workload
    target: ManagedObject


def eviction_of(workload: Workload, target: ManagedObject | None) -> Eviction | None:
    """Return the pending eviction, if any: a suspended or ended object is already stopped."""
    evicted = workload.find_true_condition(EVICTED)
    if evicted is None or workload.find_true_condition(FINISHED) is not None:
        return None
    if target is None or target.suspended or target.ended:
        return None
    return Eviction(f"{target.metadata.uid}@{evicted.last_transition_time}", workload, target)


def eviction_uid_of_signal(signal_uid: str) -> str:
    """Return the eviction of a signal: also the uid of its first signal; later pods get further signals."""
    return signal_uid.partition(_LATER)[0]


def target_uid_of_signal(signal_uid: str) -> str:
    """Return the uid of the object that a signal's eviction suspends."""
    return signal_uid.partition("@")[0]


class EvictionDetector:
    """Reports new and cancelled evictions, one object at a time, and pending ones.

    State is limited to what was reported; after a restart, the same evictions have the same uids. A hold that is over
    by then gets no further victims: see `record_earlier_signal`.

    Args:
        objects: those that Kueue suspends, and those between them and their pods.
        workloads: by their uid.
        workloads_of: the same Workloads by the uid of their controller, if its kind is followed.
        pod_workloads: the Workloads of pods that Kueue stops one by one.
        pods_of: protected pods by the uid of their controller.
        policies: of the cluster.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        objects: ManagedObjects,
        pod_workloads: PodWorkloads,
        workloads: Index[str, Workload],
        workloads_of: Index[str, Workload],
        pods_of: Index[str, Pod],
        policies: Policies,
        clock: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._pod_workloads = pod_workloads
        self._workloads = workloads
        self._by_owner = workloads_of
        self._pods_of = pods_of
        self._policies = policies
        self._clock = clock
        self._reported: dict[str, Signal] = {}
        """By uid of the object: signals neither released nor cancelled."""
        self._over: dict[str, str] = {}
        """By uid of the object: the last eviction that is over; only later pods can still cause signals."""
        self._victims_of: dict[str, tuple[str, frozenset[str]]] = {}
        """By uid of the object: its last signalled eviction, and the uids of all its signalled pods."""

    def record_earlier_signal(self, signal_uid: str, victims: frozenset[str]) -> None:
        """Register a signal from before a restart whose hold is over. `victims` are uids of pods."""
        target_uid, eviction_uid = target_uid_of_signal(signal_uid), eviction_uid_of_signal(signal_uid)
        latest, known = self._victims_of.get(target_uid, ("", frozenset()))
        if eviction_uid >= latest:  # they differ in the time of the eviction
            reported = known | victims if eviction_uid == latest else victims
            self._victims_of[target_uid] = (eviction_uid, reported)

    def pending_reports(self) -> tuple[Preempted, ...]:
        """Return every signal that is not over."""
        return tuple(map(Preempted, self._reported.values()))

    def find_object(self, uid: str) -> ManagedObject | None:
        """Return the object of this uid while it exists; see `PodWorkloads` for pods that Kueue stops one by one."""
        if (workload := self._pod_workloads.find(uid)) is not None:
            return self._pod_workloads.as_object(workload)
        return self._objects.find(uid)

    def pods_to_stop(self, uid: str) -> list[Pod]:
        """Return the running pods that Kueue stops one by one; empty if it suspends an object."""
        workload = self._pod_workloads.find(uid)
        return [] if workload is None else list(filter(is_running, self._pod_workloads.pods_of(workload)))

    def suspended_owner_of(self, pod: Pod) -> str | None:
        """Return the uid of the object that Kueue suspends to stop the pod, else of its controller, if there is one."""
        owners = tuple(self._objects.owners_of(pod))
        namespace = pod.metadata.namespace
        if (found := next((uid for uid in owners if self.workloads_of(uid, namespace)), None)) is not None:
            return found
        workload = self._pod_workloads.workload_of(pod)
        return next(iter(owners), None) if workload is None else workload.metadata.uid

    def workloads_of(self, uid: str, namespace: str) -> list[Workload]:
        """See `workloads_of_object`; works for an uncached object, too."""
        if (workload := self._pod_workloads.find(uid)) is not None:
            return [workload] if workload.metadata.namespace == namespace else []
        found = self._objects.find(uid)
        metadata = Metadata("", namespace, uid) if found is None else found.metadata
        if metadata.namespace != namespace:
            return []
        return workloads_of_object(metadata, self._by_owner.objects_of(uid), self._objects.resource_of(uid))

    def workloads_owned_by(self, uid: str) -> tuple[Workload, ...]:
        """Return Workloads of any namespace that have the object as owner."""
        return self._by_owner.objects_of(uid)

    def _find_workload_of(self, target: ManagedObject | None) -> Workload | None:
        """Return Kueue's Workload of an object."""
        found = [] if target is None else self.workloads_of(target.metadata.uid, target.metadata.namespace)
        return next(iter(found), None)

    def _list_pods_of(self, target: ManagedObject) -> list[Pod]:
        """Return its pods, excluding those of other namespaces, which may claim any owner."""
        if (workload := self._pod_workloads.find(target.metadata.uid)) is not None:
            return self._pod_workloads.pods_of(workload)
        owned = (pod for uid in self._objects.owned_by(target) for pod in self._pods_of.objects_of(uid))
        return [pod for pod in owned if pod.metadata.namespace == target.metadata.namespace]

    def pending_eviction(self, target_uid: str) -> Eviction | None:
        """Return the pending eviction of this object."""
        target = self.find_object(target_uid)
        workload = self._find_workload_of(target)
        return None if workload is None else eviction_of(workload, target)

    def reports_due(self, target_uid: str) -> tuple[KueueReport, ...]:
        """Return what to report now about this object; idempotent."""
        eviction, reported = self.pending_eviction(target_uid), self._reported.get(target_uid)
        if eviction is None and reported is None:
            eviction = self._unheld_eviction(target_uid)
        if eviction is not None:
            if reported is not None and reported.uid == eviction.uid:
                return ()
            return (
                *self._cancellation_reports(target_uid, "Kueue evicts it anew"),
                *self._reports_of_eviction(target_uid, eviction),
            )
        target = self.find_object(target_uid)
        if target is None:
            self._over.pop(target_uid, None)
            self._victims_of.pop(target_uid, None)
            return self._cancellation_reports(target_uid, f"its {_held_kind(reported)} was deleted")
        if reported is None:
            return ()
        if target.ended:
            return self._cancellation_reports(target_uid, f"its {_held_kind(reported)} has ended")
        if target.suspended:  # the eviction went through; other reports cover its pods' ends
            self._record_signal_over(target_uid, reported.uid)
            return ()
        workload = self._find_workload_of(target)
        if workload is None:  # Kueue also stops an object without a Workload (jobframework, NoMatchingWorkload)
            return ()
        return self._cancellation_reports(target_uid, f"Kueue no longer evicts Workload {workload.metadata.name}")

    def is_evicted(self, target_uid: str, namespace: str) -> bool:
        """Whether Kueue evicts this object, according to the cache."""
        return any(map(is_evicted, self.workloads_of(target_uid, namespace)[:1]))

    def _unheld_eviction(self, target_uid: str) -> Eviction | None:
        """Return this object's eviction that was not held, while pods without a signal still wait.

        If no webhook answered, all pods wait. Otherwise those that were being restored when Kueue evicted them:
        there was nothing to save then, and they have run since.
        """
        target = self.find_object(target_uid)
        if target is None or not is_suspended(target):
            return None
        workload = self._find_workload_of(target)
        if workload is None or not is_evicted(workload) or (evicted := workload.find_true_condition(EVICTED)) is None:
            return None
        uid, now = f"{target_uid}@{evicted.last_transition_time}", self._clock()
        reported = self._signaled_pod_uids(uid)
        waiting = (pod.metadata.uid for pod in self._list_pods_of(target) if is_prestop_waiting(pod, now))
        first = min((pod_uid for pod_uid in waiting if pod_uid not in reported), default=None)
        if first is None:
            return None
        return Eviction(f"{uid}{_LATER}{first}" if reported else uid, workload, target)

    def _signaled_pod_uids(self, signal_uid: str) -> frozenset[str]:
        """Return the uids of pods signalled for this eviction, by any of its signals."""
        uid, victims = self._victims_of.get(target_uid_of_signal(signal_uid), ("", frozenset()))
        return victims if uid == eviction_uid_of_signal(signal_uid) else frozenset()

    def on_released(self, signal_uid: str) -> None:
        """Stop reporting this signal."""
        self._record_signal_over(target_uid_of_signal(signal_uid), signal_uid)

    def annotation_correction(self, target_uid: str) -> tuple[bool, str | None]:
        """Return whether the annotation `names.RELEASED_HOLD` must change without the coordinator, and to which value.

        An eviction that saves nothing is released at once, because the webhook may already hold it. The annotation of
        an earlier hold is removed, because it would release the next eviction.
        """
        target = self.find_object(target_uid)
        if target is None or target.suspended or target.ended or self._find_workload_of(target) is None:
            return False, None
        now = target.metadata.annotations.get(names.RELEASED_HOLD)
        eviction = self.pending_eviction(target_uid)
        if eviction is None:
            return now is not None, None
        name = hold_name(eviction.uid)
        if target_uid in self._reported:
            return now not in {None, name}, None
        return now != name and target.names_identity, name

    def _reports_of_eviction(self, target_uid: str, eviction: Eviction) -> tuple[KueueReport, ...]:
        if not eviction.target.suspended:
            if self._over.get(target_uid) == eviction.uid:  # the Workload's event is older than the object's
                return ()
            if eviction.target.metadata.annotations.get(names.RELEASED_HOLD) == hold_name(eviction.uid):
                self._record_signal_over(target_uid, eviction.uid)  # released before a restart
                return ()
        signal = self._build_signal(eviction)
        if not signal.victims:
            self._record_signal_over(target_uid, eviction.uid)
            return ()
        self._reported[target_uid] = signal
        reported = self._signaled_pod_uids(signal.uid) | {victim.workload.uid for victim in signal.victims}
        self._victims_of[target_uid] = (eviction_uid_of_signal(signal.uid), reported)
        return (Preempted(signal),)

    def _cancellation_reports(self, target_uid: str, why: str) -> tuple[KueueReport, ...]:
        reported = self._reported.get(target_uid)
        if reported is None:
            return ()
        self._record_signal_over(target_uid, reported.uid)
        return (PreemptionCancelled(reported.uid, why),)

    def _record_signal_over(self, target_uid: str, signal_uid: str) -> None:
        reported = self._reported.get(target_uid)
        if reported is not None and reported.uid == signal_uid:
            del self._reported[target_uid]
        if self.find_object(target_uid) is not None:
            self._over[target_uid] = eviction_uid_of_signal(signal_uid)

    def _build_signal(self, eviction: Eviction) -> Signal:
        workload, target = eviction.workload, eviction.target
        reason, preemptor_uid = reason_and_preemptor_of(workload)
        reported = self._signaled_pod_uids(eviction.uid)
        pods = [pod for pod in self._pods_to_save(target) if pod.metadata.uid not in reported]
        return Signal(
            uid=eviction.uid,
            adapter=ADAPTER,
            victims=tuple(self._build_victims(workload, pods)),
            reason=reason,
            not_after=min((ends for pod in pods if (ends := pod.metadata.deletion_deadline) is not None), default=None),
            observed_at=self._clock(),
            preemptor=self._preemptor_name(preemptor_uid, target.metadata.namespace) if preemptor_uid else None,
            release_group=preemptor_uid,
            held=self._held_object(workload, target),
        )

    def _held_object(self, workload: Workload, target: ManagedObject) -> HeldObject:
        metadata, owner = target.metadata, workload.metadata.controller_reference
        if owner is None or metadata.uid == workload.metadata.uid:
            kind = WORKLOADS
            return HeldObject(kind.group_version, kind.kind, metadata.namespace, metadata.name, metadata.uid)
        return HeldObject(owner.api_version, owner.kind, metadata.namespace, metadata.name, metadata.uid)

    def _preemptor_name(self, preemptor_uid: str, to_namespace: str) -> str:
        """Return the preemptor's name if its victims may read it; Kueue discloses only its uid to another namespace."""
        preemptor = self._workloads.unique_object_of(preemptor_uid)
        if preemptor is None or preemptor.metadata.namespace != to_namespace:
            return preemptor_uid
        return f"{preemptor.metadata.namespace}/{preemptor.metadata.name}"

    def _pods_to_save(self, target: ManagedObject) -> list[Pod]:
        """Return its running pods; of terminating ones those whose preStop hook still waits."""
        running = (pod for pod in self._list_pods_of(target) if pod.status.phase == "Running")
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


def _held_kind(reported: Signal | None) -> str:
    """Return the kind of the object that a signal is about."""
    return reported.held.kind if reported is not None and reported.held is not None else "object"


def reason_and_preemptor_of(workload: Workload) -> tuple[str, str | None]:
    """Return Kueue's reason for the eviction, and the uid of the preempting Workload."""
    evicted, preempted = workload.find_true_condition(EVICTED), workload.find_true_condition(PREEMPTED)
    reason = evicted.reason if evicted else ""
    if reason != PREEMPTED or preempted is None:
        return reason, None
    found = _PREEMPTOR.search(preempted.message)
    return preempted.reason, found[1] if found and found[1] != _UNKNOWN else None
