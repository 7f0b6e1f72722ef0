"""Records in archived Checkpoints that their pod has ended after its last snapshot (`status.workloadEnded`).

The core records it in the Checkpoints that it tracks, until an hour after the snapshot. A later leader, which sees
neither the pod nor its end, would otherwise take the pod for one that was lost, once its node is removed.
"""

from __future__ import annotations

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.cluster.coordinator.archived_checkpoint_fields import ArchivedCheckpointField
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer


class ArchivedPodEnds:
    """Writes of these Checkpoints. Run `run` as a task.

    Args:
        api: may patch the status of Checkpoints.
        checkpoints: all of the cluster.
        pods: protected ones of all namespaces, after `fencing` in the order of their subscribers.
        fencing: has seen the ends of the pods.
    """

    def __init__(self, api: Api, checkpoints: CheckpointsById, pods: Informer[Pod], fencing: PodFencing) -> None:
        self._checkpoints = checkpoints
        self._fencing = fencing
        self._field = ArchivedCheckpointField(
            api, checkpoints.informer, field="workload_ended", what="end of a saved pod", is_due=self._is_due
        )
        pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Write, forever."""
        await self._field.run()

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is None or not now.finished or (before is not None and before.finished):
            return  # a tenant may change a finished pod often
        if (identity := find_identity(now)) is None:
            return
        for one in self._checkpoints.of_identity.objects_of(identity):
            if one.spec.pod_ref.uid == now.metadata.uid:
                self._field.recheck(one)

    def _is_due(self, one: KnownCheckpoint) -> bool:
        if one.status.workload_ended or not one.has_pod_run_on:
            return False
        if not self._fencing.has_ended_on_node(one.metadata.namespace, one.spec.pod_ref.uid):
            return False
        newest = self._checkpoints.newest_ready_checkpoint_of(one.identity, one.spec.namespace_uid)
        return newest is not None and newest.metadata.uid == one.metadata.uid
