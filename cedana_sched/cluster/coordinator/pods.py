"""Starts and ends of protected pods: the same for every scheduler, and so no scheduler's adapter's business."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import ClassVar

import structlog

from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.contract import Ended, Report, Starting
from cedana_sched.adapter.pods import identity_of, workload_of
from cedana_sched.adapter.readers import Readers
from cedana_sched.cluster.coordinator.alive import Alive
from cedana_sched.cluster.coordinator.beginning_numbers import BeginningNumbers
from cedana_sched.cluster.coordinator.ends import PodEnds
from cedana_sched.cluster.coordinator.known import ById
from cedana_sched.kube.objects import Pod
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Release, WorkloadRef
from cedana_sched_webhooks.continuation import asked_for

log = structlog.get_logger(__name__)


class PodReports:
    """Implements `adapter.contract.Adapter`: it reports, and has nothing to release."""

    name: ClassVar[str] = "pods"

    def __init__(
        self,
        cluster: ClusterAccess,
        alive: Alive,
        beginnings: BeginningNumbers,
        checkpoints: ById,
    ) -> None:
        """Reports what happens to the protected pods.

        Args:
            cluster: where they are; its pods are those of all namespaces. Of one that is not served the ends are
                reported, and the starts of who would wait for ever.
            alive: which of them the records count on.
            beginnings: of those that return.
            checkpoints: all that there are. Our webhook has a pod wait only where there is one of its id, or where
                the pod names what it continues: who waits besides, in a namespace that is not served, has written
                our names on his pod himself.
        """
        self._cluster = cluster
        self._beginnings = beginnings
        self._alive = alive
        self._checkpoints = checkpoints
        self._ends = PodEnds(cluster.api, alive, self._is_shown, cluster.events, self._ended, cluster.served)
        self._readers: Readers[Report] = Readers()

    async def run(self) -> None:
        """Look for pods that are not shown any more, for ever."""
        await self._ends.run()

    async def reports(self) -> AsyncIterator[Report]:
        """What is pending, then what happens: a pod that shall continue got its node, or begins again; one is gone.

        Pending is also the end of pods that some record counts on, and that are not there any more.
        """
        await self._cluster.pods.synced.wait()
        await self._beginnings.synced.wait()
        await self._checkpoints.synced.wait()
        with self._readers.reading() as queue:

            def heard(before: Pod | None, now: Pod | None) -> None:
                for report in self._of_change(before, now):
                    queue.put_nowait(report)

            def replaced_by(namespace: str, name: str) -> None:
                heard(None, self._cluster.pods.get(name, namespace))

            self._cluster.pods.subscribe(heard)
            self._beginnings.subscribe(replaced_by)
            self._alive.subscribe(self._compare)
            try:
                for pod in self._cluster.pods:
                    heard(None, pod)
                for workload in tuple(self._alive.workloads()):
                    self._compare(workload)
                while True:
                    yield await queue.get()
            finally:
                self._cluster.pods.unsubscribe(heard)
                self._beginnings.unsubscribe(replaced_by)
                self._alive.unsubscribe(self._compare)

    async def release(self, release: Release) -> None:
        """No eviction is ever held in the name of a pod's start."""

    def _compare(self, workload: WorkloadRef) -> None:
        """With what there is: a pod may have ended before it was recorded that somebody counts on it."""
        if not self._is_shown(workload):
            self._ends.doubt(workload)

    def _is_shown(self, workload: WorkloadRef) -> bool:
        shown = self._cluster.pods.get(workload.name, workload.namespace)
        return shown is not None and shown.metadata.uid == workload.uid

    def _ended(self, uid: str, why: str) -> None:
        self._readers.publish(Ended(uid, why))

    def _of_change(self, before: Pod | None, now: Pod | None) -> list[Report]:
        if now is None:
            if before is not None:
                self._ends.doubt(workload_of(before))
            return []
        if now.finished:
            was_running = before is None or not before.finished
            return [_ended(now)] if was_running else []
        is_bound = bool(now.spec.node_name) and (before is None or not before.spec.node_name)
        if not is_bound or names.RESTORE_IDENTITY not in now.metadata.annotations:
            return []
        try:
            starting = self._starting(now)
        except (KeyError, ValueError, UsageError) as error:  # somebody has changed what our webhook wrote
            log.warning("pod does not say who it is", pod=now.metadata.name, problem=repr(error))
            return []
        return [starting] if self._is_ours_to_end(now, starting) else []

    def _is_ours_to_end(self, pod: Pod, starting: Starting) -> bool:
        """In a namespace that is not served, whether it waits because we had it wait before that was so."""
        if self._cluster.served.includes(pod.metadata.namespace):
            return True
        waits_for_named = starting.continues or starting.requested_snapshot is not None or starting.refused is not None
        return _has_restore_container(pod) and (waits_for_named or self._checkpoints.has(starting.identity))

    def _starting(self, pod: Pod) -> Starting:
        annotations, identity = pod.metadata.annotations, identity_of(pod)
        wanted, refused = _wanted(pod)
        return Starting(
            workload_of(pod),
            identity,
            self._cluster.policies.of(pod),
            wanted,
            continues=annotations.get(names.EXPECT_SNAPSHOT) == "true",
            incarnation=self._beginnings.of(pod.metadata.uid),
            newest_snapshot=self._committed(identity),
            refused=refused,
        )

    def _committed(self, identity: Identity) -> SnapshotRef | None:
        """As Checkpoints say now, and not the pod's annotation: what was deleted since is not missed."""
        known = self._cluster.snapshots.snapshots_of(identity.namespace, identity.id)
        return max((ref for ref in known if ref.identity == identity), default=None)


def _has_restore_container(pod: Pod) -> bool:
    """Whether it waits until its node says how it begins; one that refuses to continue it has it begin anew."""
    return any(container.name == names.RESTORE_CONTAINER for container in pod.spec.init_containers)


def _ended(pod: Pod) -> Ended:
    """The kubelet names a reason when it, or a controller, has ended the pod; containers that fail have none.

    Where none was started, be it that the kubelet ended meanwhile, no program has failed.
    """
    containers = pod.status.container_statuses
    has_run = not containers or any(status.has_run for status in containers)
    disrupted = any(one.type == "DisruptionTarget" and one.status == "True" for one in pod.status.conditions)
    by_itself = pod.status.phase == "Failed" and pod.ended_by_itself and not pod.status.reason and not disrupted
    failed = by_itself and has_run
    return Ended(pod.metadata.uid, f"the pod has {pod.status.phase.lower()}", failed, _ran_seconds(pod))


def _ran_seconds(pod: Pod) -> float | None:
    """From the start of its first container to the end of its last one; both times are its node's.

    One that was never started has begun in 1970 (the kubelet's time of containerd's zero).
    """
    has_run = (one.state for one in pod.status.container_statuses if one.has_run)
    ends = [state["terminated"] for state in has_run if "terminated" in state]
    try:
        began = min(datetime.fromisoformat(end["startedAt"]) for end in ends)
        ended = max(datetime.fromisoformat(end["finishedAt"]) for end in ends)
    except (KeyError, ValueError, TypeError):  # containers that never ran have no times
        return None
    return max((ended - began).total_seconds(), 0.0)


def _wanted(pod: Pod) -> tuple[SnapshotRef | None, str | None]:
    """The very snapshot that a person chose, or why what he wrote is none: else its pod would wait for ever."""
    try:
        return asked_for(pod.metadata.namespace, pod.metadata.annotations), None
    except UsageError as error:
        return None, str(error)
