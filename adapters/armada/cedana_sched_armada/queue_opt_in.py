"""Pods of queues that protect all of their pods: they get their job's id before the pod webhook sees them.

An admin lists the queues; users change nothing. A resubmitted job keeps the id of the first job of its chain, so the id
is not a derived one.
"""

from __future__ import annotations

from typing import Final

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_armada.executor_labels import JOB_LABEL, QUEUE_LABEL
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_without_id
from cedana_sched_webhooks.json_patch import patch_operations

NOT_OURS: Final = Answer("not-ours")


class QueueOptIn:
    """Admission handler for pods at CREATE.

    Args:
        queues: those that protect their pods.
        served: namespaces whose pods are mutated.
    """

    def __init__(self, queues: frozenset[str], served: ServedNamespaces) -> None:
        self._queues = queues
        self._served = served

    async def answer_pod_admission(self, request: Request) -> Answer:
        """Return the annotations for the pod as a patch."""
        pod = request.object
        if pod is None or not self._served.includes(request.namespace) or not (given := self.annotations_for(pod)):
            return NOT_OURS
        metadata = {**pod["metadata"], "annotations": {**_labels_or_annotations(pod, "annotations"), **given}}
        return Answer("protected", patch=tuple(patch_operations(pod, {**pod, "metadata": metadata})))

    def annotations_for(self, pod: Object) -> dict[str, str]:
        """Return the annotations that its queue gives a pod; empty if none."""
        labels = _labels_or_annotations(pod, "labels")
        job = labels.get(JOB_LABEL)
        if not job or labels.get(QUEUE_LABEL) not in self._queues or not is_without_id(pod):
            return {}
        return {names.ID: job}


def _labels_or_annotations(pod: Object, kind: str) -> dict[str, str]:
    return pod["metadata"].get(kind) or {}
