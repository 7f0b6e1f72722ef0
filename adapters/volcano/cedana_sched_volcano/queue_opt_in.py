"""Pods of queues that protect all of their pods: they get their controller's id before the pod webhook sees them.

An admin annotates a Queue with `names.PROTECT`; users change nothing. The Queue's policy is annotated on all of its
protected pods, including those that name an id.
"""

from __future__ import annotations

from typing import Any, Final

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import derived_id
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_volcano.objects import SCHEDULER_NAME, TASK
from cedana_sched_volcano.pod_queues import PodQueueResolver, is_protecting, policy_of
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_without_id
from cedana_sched_webhooks.json_patch import patch_operations

NOT_OURS: Final = Answer("not-ours")


class QueueOptIn:
    """Admission handler for pods at CREATE.

    Args:
        queues: resolves the Queues of pods.
        served: namespaces whose pods are mutated.
    """

    def __init__(self, queues: PodQueueResolver, served: ServedNamespaces) -> None:
        self._queues = queues
        self._served = served

    async def answer_pod_admission(self, request: Request) -> Answer:
        """Return the annotations for the pod as a patch."""
        pod = request.object
        if pod is None or not self._served.includes(request.namespace):
            return NOT_OURS
        if (queue := self._protecting_queue_of(pod, request.namespace)) is None:
            return NOT_OURS
        chosen = _policy_annotation(queue)
        if not is_without_id(pod):
            return (
                Answer(
                    "named", patch=_build_annotations_patch(pod, _labels_or_annotations(pod, "annotations") | chosen)
                )
                if chosen
                else NOT_OURS
            )
        if not (given := _identity_annotations(pod, queue)):
            return Answer("alone")
        return Answer(
            "protected",
            patch=_build_annotations_patch(pod, given | _labels_or_annotations(pod, "annotations") | chosen),
        )

    def annotations_for(self, pod: Object) -> dict[str, str]:
        """Return the annotations that a pod's Queue gives it; a pod that names an id gets only the Queue's policy."""
        queue = self._protecting_queue_of(pod, pod["metadata"]["namespace"])
        if queue is None:
            return {}
        return _identity_annotations(pod, queue) if is_without_id(pod) else _policy_annotation(queue)

    def _protecting_queue_of(self, pod: Object, namespace: str) -> PartialObject | None:
        """Return the pod's Queue if that protects all of its pods."""
        if pod["spec"].get("schedulerName") != SCHEDULER_NAME:
            return None
        owner_uid = (_controlling_owner_of(pod) or pod["metadata"]).get("uid") or ""
        queue = self._queues.queue_of_new_pod(_labels_or_annotations(pod, "annotations"), namespace, owner_uid)
        return queue if queue is not None and is_protecting(queue) else None


def _policy_annotation(queue: PartialObject) -> dict[str, str]:
    """Return the annotation of the Queue's policy."""
    policy = policy_of(queue)
    return {names.QUEUE_POLICY: policy} if policy else {}


def _identity_annotations(pod: Object, queue: PartialObject) -> dict[str, str]:
    """Return the annotations of a pod without an id; empty if the pod has no controller, and so no successor."""
    if (owner := _controlling_owner_of(pod)) is None:
        return {}
    task = _labels_or_annotations(pod, "labels").get(TASK, "")
    identifier = derived_id(owner["name"], owner["uid"], room=len(f"-{task}") if task else 0)
    annotations = {names.ID: identifier, names.DERIVED_ID: "true"}
    if policy := policy_of(queue):
        annotations[names.POLICY] = policy
    return annotations | _policy_annotation(queue)


def _build_annotations_patch(pod: Object, annotations: dict[str, str]) -> tuple[Object, ...]:
    """Return the patch that sets the pod's annotations."""
    return tuple(patch_operations(pod, {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}))


def _controlling_owner_of(pod: Object) -> dict[str, Any] | None:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _labels_or_annotations(pod: Object, kind: str) -> dict[str, str]:
    return pod["metadata"].get(kind) or {}
