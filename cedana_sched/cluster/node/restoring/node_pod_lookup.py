"""What a restore reads of the node's pods and their policies."""

from __future__ import annotations

from typing import Protocol

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.policy import OnRestoreFailure, OnVolumeChange
from cedana_sched.model.preemption import WorkloadRef


class NodePodLookup(Protocol):
    """The pods in the agent's informers."""

    def pod(self, uid: str) -> Pod | None:
        """Return a pod of this node; None if it is not cached (any more)."""
        ...

    async def wait_ended(self, uid: str) -> None:
        """Return when the pod has finished, or is not cached any more; a terminating pod still exists."""
        ...

    def restore_failure_policy(self, workload: WorkloadRef) -> OnRestoreFailure:
        """Return the policy for a pod that cannot be restored."""
        ...

    def volume_change_policy(self, workload: WorkloadRef) -> OnVolumeChange:
        """Return the policy for a pod whose files ran ahead of its snapshot."""
        ...

    def image_may_change(self, workload: WorkloadRef) -> bool:
        """Return whether the policy permits to restore the pod into containers of other images."""
        ...

    def service_account_may_change(self, workload: WorkloadRef) -> bool:
        """Return whether the policy permits to restore the pod under another ServiceAccount."""
        ...
