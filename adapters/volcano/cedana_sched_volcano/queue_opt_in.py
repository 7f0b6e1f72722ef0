"""Queues that protect all of their pods: an admin annotates the Queue with `names.PROTECT`, users change nothing."""

from __future__ import annotations

from cedana_sched.kube.client import Object
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_volcano.objects import SCHEDULER_NAME, TASK
from cedana_sched_volcano.pod_queues import PodQueueResolver, is_protecting, policy_of
from cedana_sched_webhooks.opt_in import OptIn, Protection, find_controller_reference


class QueueOptIn(OptIn):
    """Admission handler for pods at CREATE.

    Args:
        queues: resolves the Queues of pods.
        served: namespaces whose pods are mutated.
    """

    def __init__(self, queues: PodQueueResolver, served: ServedNamespaces) -> None:
        super().__init__(self._protection_by_queue, served)
        self._queues = queues

    def _protection_by_queue(self, pod: Object, namespace: str) -> Protection | None:
        """Return the decision of the pod's Queue; None if it does not protect all of its pods."""
        if pod["spec"].get("schedulerName") != SCHEDULER_NAME:
            return None
        metadata = pod["metadata"]
        owner_uid = (find_controller_reference(pod) or metadata).get("uid") or ""
        queue = self._queues.queue_of_new_pod(metadata.get("annotations") or {}, namespace, owner_uid)
        if queue is None or not is_protecting(queue):
            return None
        return Protection(policy_of(queue), (metadata.get("labels") or {}).get(TASK, ""))
