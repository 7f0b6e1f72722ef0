"""Reports starts and ends of protected pods; independent of the scheduler, so no adapter's task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import ClassVar

import structlog

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Ended, Report, Starting
from cedana_sched.adapter.protected_pods import identity_of, workload_of
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.cluster.coordinator.pod_end_confirmation import PodEndConfirmation
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing, Predecessor
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.seen_pod_ends import is_lost_with_node
from cedana_sched.kube.builtin_kinds import DISRUPTED, Pod
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Release, WorkloadRef
from cedana_sched_webhooks.snapshot_choice import requested_snapshot_of

log = structlog.get_logger(__name__)

LOOK_AGAIN_SECONDS = 1.0
"""For a pod whose predecessor may still run: also the time since its deletion counts, which no watch shows."""


class _Repetitions:
    """Calls back for each waiting pod after a while, once at a time for each uid."""

    def __init__(self, call: Callable[[WorkloadRef], None]) -> None:
        self._call = call
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def schedule(self, waiting: WorkloadRef) -> None:
        if waiting.uid not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[waiting.uid] = loop.call_later(LOOK_AGAIN_SECONDS, self._repeat, waiting)

    def cancel(self, uid: str) -> None:
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _repeat(self, waiting: WorkloadRef) -> None:
        del self._timers[waiting.uid]
        self._call(waiting)


class PodReports:
    """Implements `adapter.contract.Adapter`: it reports, and has nothing to release."""

    name: ClassVar[str] = "pods"

    def __init__(
        self,
        cluster: ClusterAccess,
        dependencies: PodNodeDependencies,
        incarnations: IncarnationNumbers,
        checkpoints: CheckpointsById,
        fencing: PodFencing | None = None,
    ) -> None:
        """Construct the reporter.

        Args:
            cluster: access to pods of all namespaces. For unserved namespaces it reports ends, and only those starts
                that would otherwise wait forever.
            dependencies: pods that records depend on.
            incarnations: incarnations of restored pods.
            checkpoints: all Checkpoints. Our webhook makes a pod wait only if its id has one, or the pod names its
                snapshot: any other waiting pod in an unserved namespace has our reserved names from its own author.
            fencing: evidence that pods have ended; None: a deleted pod has ended.
        """
        self._fencing = fencing
        self._cluster = cluster
        self._incarnations = incarnations
        self._dependencies = dependencies
        self._checkpoints = checkpoints
        self._readers: ReportFanout[Report] = ReportFanout()
        self._ends = PodEndConfirmation(
            cluster.api,
            dependencies,
            self._is_cached,
            cluster.events,
            self._readers.publish,
            cluster.served,
            fencing,
        )

    async def run(self) -> None:
        """Check pods that left the cache, forever."""
        await self._ends.run()

    async def reports(self) -> AsyncIterator[Report]:
        """Report what is pending, then changes: a pod with a restore got its node or another incarnation; a pod ended.

        Pending includes ends of pods that a record depends on and that no longer exist.
        """
        await self._cluster.pods.synced.wait()
        await self._incarnations.synced.wait()
        await self._checkpoints.synced.wait()
        with self._readers.subscribed_queue() as queue:

            def on_pod_change(before: Pod | None, now: Pod | None) -> None:
                if before is not None and (now is None or before.metadata.uid != now.metadata.uid):
                    repetitions.cancel(before.metadata.uid)
                for report in self._reports_of_change(before, now):
                    queue.put_nowait(report)
                    if isinstance(report, Starting) and report.predecessor is not None:
                        repetitions.schedule(report.workload)

            def report_again(waiting: WorkloadRef) -> None:
                pod = self._cluster.pods.get(waiting.name, waiting.namespace)
                if pod is not None and pod.metadata.uid == waiting.uid:
                    on_pod_change(None, pod)

            def replaced_by(namespace: str, name: str) -> None:
                on_pod_change(None, self._cluster.pods.get(name, namespace))

            repetitions = _Repetitions(report_again)
            self._cluster.pods.subscribe(on_pod_change)
            self._incarnations.subscribe(replaced_by)
            self._dependencies.subscribe(self._enqueue_if_uncached)
            try:
                for pod in self._cluster.pods:
                    on_pod_change(None, pod)
                for workload in tuple(self._dependencies.workloads()):
                    self._enqueue_if_uncached(workload)
                while True:
                    yield await queue.get()
            finally:
                repetitions.cancel_all()
                self._cluster.pods.unsubscribe(on_pod_change)
                self._incarnations.unsubscribe(replaced_by)
                self._dependencies.unsubscribe(self._enqueue_if_uncached)

    async def release(self, release: Release) -> None:
        """No-op: no eviction is held for a pod's start."""

    def _enqueue_if_uncached(self, workload: WorkloadRef) -> None:
        """Check the pod: it may have ended before a record came to depend on it."""
        if not self._is_cached(workload):
            self._ends.enqueue_check(workload)

    def _is_cached(self, workload: WorkloadRef) -> bool:
        shown = self._cluster.pods.get(workload.name, workload.namespace)
        return shown is not None and shown.metadata.uid == workload.uid

    def _reports_of_change(self, before: Pod | None, now: Pod | None) -> list[Report]:
        if now is None:
            if before is not None and not before.finished:  # then it was reported, with whether its node was lost
                self._ends.enqueue_check(workload_of(before))
            return []
        if now.finished:
            was_running = before is None or not before.finished
            return [_ended_report(now, is_node_gone=self._is_node_gone(now))] if was_running else []
        is_bound = bool(now.spec.node_name) and (before is None or not before.spec.node_name)
        if not is_bound or names.RESTORE_IDENTITY not in now.metadata.annotations:
            return []
        try:
            starting = self._starting_report(now)
        except (KeyError, ValueError, UsageError) as error:  # another writer changed our webhook's annotations
            log.warning("pod does not say who it is", pod=now.metadata.name, error=repr(error))
            return []
        return [starting] if self._is_start_reportable(now, starting) else []

    def _is_node_gone(self, pod: Pod) -> bool:
        return self._fencing is not None and self._fencing.is_node_gone(pod.spec.node_name)

    def _is_start_reportable(self, pod: Pod, starting: Starting) -> bool:
        """Whether the pod is served, or waits because our webhook made it wait before the namespace was excluded."""
        if self._cluster.served.includes(pod.metadata.namespace):
            return True
        waits_for_named = starting.continues or starting.requested_snapshot is not None or starting.refused is not None
        return _has_restore_container(pod) and (
            waits_for_named or self._checkpoints.has_checkpoint_of_id(starting.identity)
        )

    def _starting_report(self, pod: Pod) -> Starting:
        annotations, identity, workload = pod.metadata.annotations, identity_of(pod), workload_of(pod)
        wanted, refused = _parse_requested_snapshot(pod)
        before = self._fencing.predecessor_of(pod) if self._fencing is not None else Predecessor()
        return Starting(
            workload,
            identity,
            self._cluster.policies.policy_of_pod(pod),
            wanted,
            continues=annotations.get(names.EXPECT_SNAPSHOT) == "true",
            incarnation=self._incarnations.latest_incarnation_of(pod.metadata.uid),
            newest_snapshot=self._newest_snapshot_of(identity),
            refused=refused,
            predecessor=before.blocker,
            ran_on=self._checkpoints.snapshots_run_on(identity, workload.namespace_uid),
            loss=before.loss,
            saved=before.saved,
        )

    def _newest_snapshot_of(self, identity: Identity) -> SnapshotRef | None:
        """Return the newest snapshot by current Checkpoints, not by the annotation: some may be deleted since."""
        known = self._cluster.snapshots.snapshots_of(identity.namespace, identity.id)
        return max((ref for ref in known if ref.identity == identity), default=None)


def _has_restore_container(pod: Pod) -> bool:
    """Whether it waits for its node's decision; a pod whose restore is refused starts cold."""
    return any(container.name == names.RESTORE_CONTAINER for container in pod.spec.init_containers)


def _ended_report(pod: Pod, *, is_node_gone: bool) -> Ended:
    """Return the report; failed only without a reason: the kubelet writes one if it or a controller ended the pod.

    If no container was started, even because the kubelet ended meanwhile, no program has failed.
    """
    containers = pod.status.container_statuses
    has_run = not containers or any(status.has_run for status in containers)
    disrupted = any(one.type == DISRUPTED and one.status == "True" for one in pod.status.conditions)
    by_itself = pod.status.phase == "Failed" and pod.ended_by_itself and not pod.status.reason and not disrupted
    failed = by_itself and has_run
    what = f"the pod has {pod.status.phase.lower()}"
    is_lost = is_lost_with_node(pod, is_node_gone=is_node_gone)
    return Ended(pod.metadata.uid, what, failed, _ran_seconds(pod), is_lost)


def _ran_seconds(pod: Pod) -> float | None:
    """Return seconds from the first container's start to the last one's end; both are the node's times.

    The kubelet dates the start of a container that never started 1970 (containerd's zero time).
    """
    has_run = (one.state for one in pod.status.container_statuses if one.has_run)
    ends = [state["terminated"] for state in has_run if "terminated" in state]
    try:
        began = min(datetime.fromisoformat(end["startedAt"]) for end in ends)
        ended = max(datetime.fromisoformat(end["finishedAt"]) for end in ends)
    except (KeyError, ValueError, TypeError):  # containers that never ran have no times
        return None
    return max((ended - began).total_seconds(), 0.0)


def _parse_requested_snapshot(pod: Pod) -> tuple[SnapshotRef | None, str | None]:
    """Return the snapshot chosen by the user, or why it is malformed: without that, the pod would wait forever."""
    try:
        return requested_snapshot_of(pod.metadata.namespace, pod.metadata.annotations), None
    except UsageError as error:
        return None, str(error)
