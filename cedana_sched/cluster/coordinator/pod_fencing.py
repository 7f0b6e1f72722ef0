"""Whether a pod's processes have ended for certain, so that another pod may continue its work.

The API server may lack a pod that still runs: a node that is cut off executes its pods although they were deleted by
force. Evidence that a pod has ended is one of these:

    the pod has finished        the kubelet writes a terminal phase after the containers have ended
    its node is gone            its object was deleted, or an admin tainted it as out of service
    its kubelet has caught up   it was ready for as long as a kubelet takes to end pods that the API server lacks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.coordinator.core.user_events import format_short_name
from cedana_sched.kube.builtin_kinds import DISRUPTED, OUT_OF_SERVICE, Node, Pod, read_time
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, may_be_same_namespace
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import CheckpointStep

T = TypeVar("T")

UNKNOWN_GRACE_SECONDS = 30.0
"""Grace of a pod that disappeared while no coordinator watched."""
KUBELET_SECONDS = 60.0
"""How long a kubelet takes, beside the pod's grace, to end a pod that the API server lacks."""
_STOPPED: Final = frozenset({CheckpointStep.COMMITTED, CheckpointStep.KILLING, CheckpointStep.READY})
"""After a failure in its gang, the pod of a committed checkpoint executes again."""
MOST_FINISHED = 50_000
"""Finished pods remembered; older ones count by their node alone."""


class PodFencing:
    """The evidence for all protected pods.

    Args:
        pods: protected ones of all namespaces.
        nodes: all of the cluster.
        checkpoints: all of the cluster.
        now: seconds since the epoch, by the API server.
    """

    def __init__(
        self,
        pods: Informer[Pod],
        nodes: Informer[Node],
        checkpoints: Informer[KnownCheckpoint],
        now: Callable[[], float] = SERVER_TIME.seconds,
    ) -> None:
        self._nodes = nodes
        self._now = now
        self._began_at = now()
        self._finished: dict[str, None] = {}
        """Uids of pods that were seen finished."""
        self._ended_by_themselves: dict[str, None] = {}
        """Uids of those that no component has ended: their program did."""
        self._gone: dict[str, tuple[float, float]] = {}
        """By uid of a pod that disappeared unfinished: when, and its grace in seconds."""
        self._shown: dict[str, None] = {}
        """Uids of pods that the API server has."""
        self._of_identity = Index(find_identity, pods)
        self._snapshots = Index(lambda one: one.identity if one.snapshot is not None else None, checkpoints)
        for pod in pods:
            self._on_pod_changed(None, pod)
        pods.subscribe(self._on_pod_changed)

    def objection_to_end(self, workload: WorkloadRef) -> str | None:
        """Return why a pod that the API server lacks may still run, and the remedy; None once it has ended."""
        uid, node = workload.uid, self._nodes.get(workload.node)
        if uid in self._finished or not workload.node or node is None or node.is_out_of_service:
            return None
        what = f"{workload.name} was deleted, and may still run on node {workload.node}"
        ready_since = _ready_since(node)
        if ready_since is None:
            return (
                f"{what}, which is not ready: it ends when the node is ready again, when its object is deleted, or when"
                f" it has the taint {OUT_OF_SERVICE} (set it if the machine is off for certain)"
            )
        gone_at, grace = self._gone.get(uid, (self._began_at, UNKNOWN_GRACE_SECONDS))
        left = max(gone_at, ready_since) + grace + KUBELET_SECONDS - self._now()
        return None if left <= 0 else f"{what}, whose kubelet has not confirmed its end: counted as ended in time"

    def objection_to_start(self, pod: Pod) -> str | None:
        """Return why an earlier pod of the pod's identity may still run; None if none does.

        Pods that run, and are not about to end, are rivals: see `identity_rivals`.
        """
        identity = find_identity(pod)
        if identity is None:
            return None
        for other in self._of_identity.objects_of(identity):
            if other.metadata.uid != pod.metadata.uid and self._is_ending(other):
                return self._objection_to_ending(other)
        return self._objection_to_lost(identity, pod)

    def loss_before(self, pod: Pod) -> str | None:
        """Return how the pod's predecessor was lost with its node; None if it was not, or has not run on unsaved."""
        identity = find_identity(pod)
        newest = self._newest_snapshot(identity, pod) if identity is not None else None
        if newest is None or not newest.has_pod_run_on or newest.spec.pod_ref.uid in self._ended_by_themselves:
            return None
        ref = newest.spec.pod_ref
        node = self._nodes.get(ref.node_name)
        is_lost = ref.uid != pod.metadata.uid and (node is None or node.is_out_of_service)
        return f"node {ref.node_name} was lost with {_name_of_saved(newest)}" if is_lost else None

    def _is_ending(self, pod: Pod) -> bool:
        """Whether the pod is about to end, and executes until then."""
        metadata, node = pod.metadata, self._nodes.get(pod.spec.node_name)
        if pod.finished or metadata.deletion_timestamp is None or node is None or node.is_out_of_service:
            return False
        return names.NOT_PROTECTED not in metadata.annotations and not self._is_stopped(pod)

    def _is_stopped(self, pod: Pod) -> bool:
        """Whether it was saved, and has executed nothing since."""
        identity = find_identity(pod)
        known = self._snapshots.objects_of(identity) if identity is not None else ()
        return any(
            one.spec.pod_ref.uid == pod.metadata.uid and one.status.step in _STOPPED and not one.has_pod_run_on
            for one in known
        )

    def _objection_to_ending(self, pod: Pod) -> str:
        what = f"{pod.metadata.name} is being deleted, and may still run on node {pod.spec.node_name}"
        node = self._nodes.get(pod.spec.node_name)
        if node is not None and _ready_since(node) is None:
            return (
                f"{what}, which is not ready: delete the node's object, or, if the machine is off for certain, add the"
                f" taint {OUT_OF_SERVICE}"
            )
        return what

    def _objection_to_lost(self, identity: Identity, pod: Pod) -> str | None:
        """Return why a pod that ran on after its newest snapshot, and that the API server lacks, may still run."""
        newest = self._newest_snapshot(identity, pod)
        if newest is None or not newest.has_pod_run_on:
            return None
        ref = newest.spec.pod_ref
        if ref.uid == pod.metadata.uid or ref.uid in self._shown:
            return None
        return self.objection_to_end(WorkloadRef(ref.uid, identity.namespace, _name_of_saved(newest), ref.node_name))

    def _newest_snapshot(self, identity: Identity, pod: Pod) -> KnownCheckpoint | None:
        mine = pod.metadata.annotations.get(names.NAMESPACE_UID, "")
        made = [
            one
            for one in self._snapshots.objects_of(identity)
            if one.status.step is CheckpointStep.READY and may_be_same_namespace(one.spec.namespace_uid, mine)
        ]
        return max(made, key=lambda one: one.snapshot.generation if one.snapshot is not None else 0, default=None)

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is not None:
            self._shown[now.metadata.uid] = None
            if now.finished:
                _remember(self._finished, now.metadata.uid, None)
            if now.ended_by_itself and not any(one.type == DISRUPTED for one in now.status.conditions):
                _remember(self._ended_by_themselves, now.metadata.uid, None)
        elif before is not None:
            uid = before.metadata.uid
            self._shown.pop(uid, None)
            if uid not in self._finished:
                grace = before.spec.termination_grace_period_seconds
                _remember(self._gone, uid, (self._now(), UNKNOWN_GRACE_SECONDS if grace is None else float(grace)))


def _name_of_saved(one: KnownCheckpoint) -> str:
    return f"the pod that was saved as {format_short_name(one.snapshot)}" if one.snapshot is not None else "its pod"


def _remember(known: dict[str, T], uid: str, value: T) -> None:
    known[uid] = value
    while len(known) > MOST_FINISHED:
        del known[next(iter(known))]


def _ready_since(node: Node) -> float | None:
    """Return when the node became ready (epoch seconds); None if it is not."""
    for one in node.status.conditions:
        if one.type == "Ready" and one.status == "True":
            return read_time(one.last_transition_time) or 0.0
    return None
