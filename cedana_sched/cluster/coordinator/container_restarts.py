"""Publishes that the kubelet restarted a container from scratch in a pod that has a snapshot.

A container that exits in a pod with `restartPolicy: OnFailure` or `Always` is restarted in place, as its owner
configured, not restored; users must not assume a restore. A pod that restarts as a whole, because its sandbox was
recreated, is another incarnation (`PodReports`), and not published here if the pod has a restore container.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.cluster.coordinator.owner_references import warn_pod_and_owner
from cedana_sched.coordinator.core.user_events import format_short_name
from cedana_sched.kube.builtin_kinds import ContainerStatus, Pod
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import SnapshotRef

LATE_SECONDS = 600.0
"""An earlier leader most likely published older restarts."""
CLOCKS_APART_SECONDS = 15.0
"""Clock skew between the node, which dates a container's start, and the coordinator, which dates a pod's restore."""


class ContainerRestarts:
    """Restarts of all protected pods. Run `run` as a task: it publishes those that happened without a leader.

    Args:
        events: publishes Events.
        snapshots: restorable ones.
        incarnations: incarnations of restored pods.
        now: the time of day.
    """

    def __init__(
        self,
        events: EventRecorder,
        snapshots: CheckpointsById,
        incarnations: IncarnationNumbers,
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._events = events
        self._now = now
        self._incarnations = incarnations
        self._snapshots = snapshots
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}
        """By uid of a pod and name of a container: the pod's incarnation, and the container's restart count."""

    async def run(self, pods: Informer[Pod]) -> None:
        """Publish missed restarts: of containers that started after their pod was saved or restored."""
        for synced in (pods.synced, self._snapshots.synced, self._incarnations.synced):
            await synced.wait()
        for pod in pods:
            for status in pod.status.container_statuses:
                if self._lost_saved_work_lately(pod, status) and (newest := self._newest_snapshot_of(pod)) is not None:
                    self._publish_restart(pod, status.name, status.restart_count, newest)

    def _lost_saved_work_lately(self, pod: Pod, status: ContainerStatus) -> bool:
        """Whether the restart recently lost work that was saved of this pod, or that the pod was restored from."""
        identity, started, uid = find_identity(pod), status.started_at, pod.metadata.uid
        if not status.restart_count or identity is None or started is None:
            return False
        if self._now().timestamp() - started >= LATE_SECONDS:
            return False
        if (continued_at := self._incarnations.restore_time_of(uid)) is not None:
            return started > continued_at + CLOCKS_APART_SECONDS
        replaced_by = (
            self._incarnations.latest_incarnation_of(uid) > 0
        )  # a restart of the whole pod is an incarnation, and published as one
        return not replaced_by and self._snapshots.has_pod_snapshot_before(uid, identity, started)

    def on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        """Sink of the informer of protected pods."""
        if now is None or now.finished:
            one = now or before
            if one is not None:
                self._seen.pop(one.metadata.uid, None)
            return
        seen = self._seen.setdefault(now.metadata.uid, {})
        beginning = self._incarnations.latest_incarnation_of(now.metadata.uid)
        for status in now.status.container_statuses:
            known, seen[status.name] = seen.get(status.name), (beginning, status.restart_count)
            if known is None or status.restart_count <= known[1]:
                if known is not None:
                    seen[status.name] = known
            elif known[0] == beginning and (newest := self._newest_snapshot_of(now)) is not None:
                self._publish_restart(now, status.name, status.restart_count, newest)

    def _newest_snapshot_of(self, pod: Pod) -> SnapshotRef | None:
        identity = find_identity(pod)
        if identity is None:
            return None
        known = self._snapshots.snapshots_of(identity.namespace, identity.id)
        mine = (ref for ref in known if ref.identity.index == identity.index)
        return max(mine, key=lambda ref: ref.generation, default=None)

    def _publish_restart(self, pod: Pod, container: str, count: int, newest: SnapshotRef) -> None:
        name = pod.metadata.name
        text = (
            f"Container {container} of {name} was started from its beginning by the kubelet (restart {count}),"
            f" not from {format_short_name(newest)}: delete the pod to have its successor continue from there"
        )
        warn_pod_and_owner(self._events, pod.metadata, "ColdStart", text)
