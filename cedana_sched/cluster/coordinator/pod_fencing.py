"""Whether a pod's processes have ended for certain, so that another pod may continue its work.

The API server may lack a pod that still runs: a node that is cut off executes its pods although they were deleted by
force. Evidence that a pod has ended is one of these:

    the pod has finished        the kubelet writes a terminal phase after the containers have ended
    its node is gone            its object was deleted, or an admin tainted it as out of service
    its kubelet has caught up   it was ready for as long as a kubelet takes to end pods that the API server lacks

The pod that ran an identity last decides: that of its last Restore or, if a later one was never restored, the pod of
its newest snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from cedana_sched.adapter.contract import LastSaved
from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.seen_pod_ends import SeenPodEnds
from cedana_sched.coordinator.core.user_events import format_short_name
from cedana_sched.kube.builtin_kinds import OUT_OF_SERVICE, Node, Pod, read_time
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, may_be_same_namespace
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import CheckpointStep, run_time_of
from cedana_sched_webhooks.pod_mutations import GRACE_MARGIN_SECONDS

KUBELET_SECONDS = 60.0
"""How long a kubelet takes, beside the pod's grace, to end a pod that the API server lacks."""
_DEADLINE: Final = CheckpointPolicy.model_fields["deadline_seconds"].alias or ""
_STOPPED: Final = frozenset({CheckpointStep.COMMITTED, CheckpointStep.KILLING, CheckpointStep.READY})
"""After a failure in its gang, the pod of a committed checkpoint executes again."""
_COMPLETING: Final = _STOPPED - {CheckpointStep.READY}


class FencingBlocker(msgspec.Struct, frozen=True):
    """Why a pod that the API server lacks may still run."""

    why: str
    """With the remedy."""
    until: float | None = None
    """When a kubelet that stays ready has ended the pod (epoch seconds); None: not before the node changes."""


class Predecessor(msgspec.Struct, frozen=True):
    """The pod that ran an identity before, as far as it concerns the next one."""

    blocker: str | None = None
    """Why it may still run, and the remedy; None if it does not."""
    loss: str | None = None
    """How it was lost with its node; None if it was not, or has executed nothing after its snapshot."""
    saved: LastSaved | None = None
    """The pod of the newest snapshot."""


class PodFencing:
    """The evidence for all protected pods.

    Args:
        pods: protected ones of all namespaces.
        nodes: all of the cluster.
        checkpoints: all of the cluster.
        restores: those that the journal tracks.
        now: seconds since the epoch, by the API server.
    """

    def __init__(
        self,
        pods: Informer[Pod],
        nodes: Informer[Node],
        checkpoints: CheckpointsById,
        restores: Informer[OrderedObject],
        now: Callable[[], float] = SERVER_TIME.seconds,
    ) -> None:
        self._nodes = nodes
        self._now = now
        self._ends = SeenPodEnds(pods, self.is_node_gone, now)
        self._of_identity = Index(find_identity, pods)
        self._checkpoints = checkpoints
        self._restores = Index(_identity_of_restore, restores)
        self._restores_of_pod = Index(lambda one: one.spec.pod_ref.uid or None, restores)

    def subscribe(self, sink: Callable[[str], None]) -> None:
        """Call `sink` with the name of each node whose change may be evidence. The sink must not block."""

        def on_node_changed(before: Node | None, now: Node | None) -> None:
            if (known := now or before) is not None and (
                before is None or now is None or _evidence_of(before) != _evidence_of(now)
            ):
                sink(known.metadata.name)

        self._nodes.subscribe(on_node_changed)

    def is_node_gone(self, name: str) -> bool:
        """Whether the cache lacks the node, or shows it as out of service."""
        return has_node_gone(self._nodes.get(name))

    def has_finished(self, workload: WorkloadRef) -> bool:
        """Whether the pod was seen with a terminal phase, or was never bound to a node."""
        return not workload.node or self._ends.has_finished(workload.namespace, workload.uid)

    def has_ended_on_node(self, namespace: str, uid: str) -> bool:
        """Whether the pod was seen finished by its program or its kubelet."""
        return self._ends.has_ended_on_node(namespace, uid)

    def blocker_of(self, workload: WorkloadRef) -> FencingBlocker | None:
        """Return why a pod that the API server lacks may still run; None once it has ended."""
        node = self._nodes.get(workload.node)
        if self.has_finished(workload) or node is None or node.is_out_of_service:
            return None
        what = f"{workload.name} was deleted, and may still run on node {workload.node}"
        ready_since = _ready_since(node)
        if ready_since is None:
            return FencingBlocker(
                f"{what}, which is not ready: it ends when the node is ready again, when its object is deleted, or when"
                f" it has the taint {OUT_OF_SERVICE} (set it if the machine is off for certain)"
            )
        gone = self._ends.disappearance_of(workload.namespace, workload.uid, self._raised_grace_of(workload.uid))
        until = max(gone.at, ready_since) + gone.grace_seconds + KUBELET_SECONDS
        if until <= self._now():
            return None
        return FencingBlocker(f"{what}, whose kubelet has not confirmed its end: counted as ended in time", until)

    def _raised_grace_of(self, uid: str) -> float:
        """Return the grace that the webhook gives a pod of this policy; its author may have written a longer one."""
        policies = (one.policy for one in self._restores_of_pod.objects_of(uid))
        written = (policy.get(_DEADLINE) for policy in policies)
        deadlines = [float(one) for one in written if isinstance(one, int | float)]
        return max(deadlines, default=CheckpointPolicy().deadline_seconds) + GRACE_MARGIN_SECONDS

    def predecessor_of(self, pod: Pod) -> Predecessor:
        """Return what concerns the pod of the one that ran its identity before.

        Pods that run, and are not about to end, are rivals: see `identity_rivals`.
        """
        identity = find_identity(pod)
        if identity is None:
            return Predecessor()
        others = (one for one in self._of_identity.objects_of(identity) if one.metadata.uid != pod.metadata.uid)
        ending = min(filter(self._is_ending, others), key=lambda one: one.metadata.uid, default=None)
        if ending is not None:  # always the same one: each change is reported
            return Predecessor(self._describe_ending(ending))
        namespace_uid = pod.metadata.annotations.get(names.NAMESPACE_UID, "")
        snapshot = self._checkpoints.newest_ready_checkpoint_of(identity, namespace_uid)
        restore = self._last_run_restore(identity, namespace_uid)
        if restore is not None and _ran_after(restore, snapshot):
            before, uid = self._restored_predecessor(restore, snapshot, pod), restore.workload.uid
        elif snapshot is not None:
            before, uid = self._saved_predecessor(identity, snapshot, pod), snapshot.spec.pod_ref.uid
        else:
            return Predecessor()
        if before.loss is not None and self._is_being_saved(identity, uid):
            before = Predecessor(before.blocker or "the checkpoint of the earlier pod is being completed")
        return replace(before, saved=_last_saved(snapshot))

    def _is_ending(self, pod: Pod) -> bool:
        """Whether the pod is about to end, and executes until then."""
        metadata, node = pod.metadata, self._nodes.get(pod.spec.node_name)
        if pod.finished or metadata.deletion_timestamp is None or has_node_gone(node):
            return False
        return names.NOT_PROTECTED not in metadata.annotations and not self._is_stopped(pod)

    def _is_stopped(self, pod: Pod) -> bool:
        """Whether it was saved, and has executed nothing since."""
        identity = find_identity(pod)
        known = self._checkpoints.of_identity.objects_of(identity) if identity is not None else ()
        return any(
            one.snapshot is not None
            and one.spec.pod_ref.uid == pod.metadata.uid
            and one.status.step in _STOPPED
            and not one.has_pod_run_on
            for one in known
        )

    def _is_being_saved(self, identity: Identity, pod_uid: str) -> bool:
        """Whether the pod is saved and stopped, unless its gang fails: then it was lost."""
        return any(
            one.spec.pod_ref.uid == pod_uid and one.status.step in _COMPLETING and not one.has_pod_run_on
            for one in self._checkpoints.of_identity.objects_of(identity)
        )

    def _describe_ending(self, pod: Pod) -> str:
        what = f"{pod.metadata.name} is being deleted, and may still run on node {pod.spec.node_name}"
        node = self._nodes.get(pod.spec.node_name)
        if node is not None and _ready_since(node) is None:
            return (
                f"{what}, which is not ready: delete the node's object, or, if the machine is off for certain, add the"
                f" taint {OUT_OF_SERVICE}"
            )
        return what

    def _last_run_restore(self, identity: Identity, namespace_uid: str) -> OrderedObject | None:
        """Return the Restore of the pod that ran last; one that was still waiting or staging has run nothing."""
        ran = (
            one
            for one in self._restores.objects_of(identity)
            if (one.status.start_time is not None or one.status.lost_with_node)
            and may_be_same_namespace(one.spec.namespace_uid, namespace_uid)
        )
        return max(ran, key=_run_time, default=None)

    def _restored_predecessor(self, restore: OrderedObject, snapshot: KnownCheckpoint | None, pod: Pod) -> Predecessor:
        workload = restore.workload
        is_saved = snapshot is not None and snapshot.spec.pod_ref.uid == workload.uid
        if workload.uid == pod.metadata.uid or (is_saved and snapshot is not None and not snapshot.has_pod_run_on):
            return Predecessor()
        if restore.is_terminal:
            is_lost = restore.status.lost_with_node
            return Predecessor(loss=f"node {workload.node} was lost with {workload.name}" if is_lost else None)
        if self._ends.is_shown(workload.uid) and not self.has_finished(workload):
            return Predecessor()
        blocker = self.blocker_of(workload)
        return Predecessor(blocker.why if blocker is not None else f"the end of {workload.name} is being recorded")

    def _saved_predecessor(self, identity: Identity, snapshot: KnownCheckpoint, pod: Pod) -> Predecessor:
        ref = snapshot.spec.pod_ref
        if not snapshot.has_pod_run_on or ref.uid == pod.metadata.uid:
            return Predecessor()
        name = f"the pod that was saved as {format_short_name(snapshot.snapshot or identity)}"
        has_ended = snapshot.status.workload_ended or self._ends.has_ended_on_node(identity.namespace, ref.uid)
        is_lost = has_node_gone(self._nodes.get(ref.node_name), snapshot.began_at) and not has_ended
        loss = f"node {ref.node_name} was lost with {name}" if is_lost else None
        if self._ends.is_shown(ref.uid):
            return Predecessor(loss=loss)
        blocker = self.blocker_of(WorkloadRef(ref.uid, identity.namespace, name, ref.node_name))
        return Predecessor(blocker.why if blocker is not None else None, loss)


def has_node_gone(node: Node | None, since: float | None = None) -> bool:
    """Whether a node has no object, or was declared out of service: none of its pods runs any more.

    `since`: when it was there (epoch seconds); one that was made later is another node of its name.
    """
    if node is None or node.is_out_of_service:
        return True
    made_at = read_time(node.metadata.creation_timestamp)
    return since is not None and made_at is not None and made_at > since


def _last_saved(snapshot: KnownCheckpoint | None) -> LastSaved | None:
    if snapshot is None or snapshot.began_at is None:
        return None
    return LastSaved(snapshot.spec.pod_ref.uid, snapshot.began_at)


def _identity_of_restore(restore: OrderedObject) -> Identity | None:
    named = restore.spec.identity
    return None if named is None else Identity(restore.metadata.namespace, named.id, named.index, named.container)


def _run_time(restore: OrderedObject) -> float:
    status = restore.status
    created_at = read_time(restore.metadata.creation_timestamp) or 0.0
    ran = (read_time(status.start_time), read_time(status.completion_time))
    return run_time_of(*ran, created_at, lost_with_node=status.lost_with_node)


def _ran_after(restore: OrderedObject, snapshot: KnownCheckpoint | None) -> bool:
    """Whether the restored pod ran after the saved one, or is the same."""
    if snapshot is None or snapshot.spec.pod_ref.uid == restore.workload.uid:
        return True
    return (snapshot.began_at or 0.0) <= _run_time(restore)


def _evidence_of(node: Node) -> tuple[bool, float | None]:
    return node.is_out_of_service, _ready_since(node)


def _ready_since(node: Node) -> float | None:
    """Return when the node became ready (epoch seconds); None if it is not."""
    for one in node.status.conditions:
        if one.type == "Ready" and one.status == "True":
            return read_time(one.last_transition_time) or 0.0
    return None
