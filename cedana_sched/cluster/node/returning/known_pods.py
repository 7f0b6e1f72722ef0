"""What a return reads of the pods of its node, and of their policies."""

from __future__ import annotations

from typing import Protocol

from cedana_sched.kube.objects import Pod
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import WorkloadRef


class PodsOfNode(Protocol):
    """What the agent's watches cache."""

    def pod(self, uid: str) -> Pod | None:
        """A pod of this node; None when it is not known (any more)."""
        ...

    async def wait_ended(self, uid: str) -> None:
        """Return when the pod has finished, or is not known any more; one that is only being deleted is still there."""
        ...

    def on_restore_failure(self, workload: WorkloadRef) -> OnRestoreFailure:
        """What the policy says about a pod that cannot be continued."""
        ...

    def image_may_change(self, workload: WorkloadRef) -> bool:
        """Whether the policy lets it continue in containers of other images."""
        ...

    def service_account_may_change(self, workload: WorkloadRef) -> bool:
        """Whether the policy lets it continue under another ServiceAccount."""
        ...
