"""Queue of a pod: as in Volcano, determined by its PodGroup, whatever the pod's annotations are.

The pod's author controls its annotations, which may name a Queue that the pod is not in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cedana_sched.kube.builtin_kinds import PartialObject, Pod
from cedana_sched.model.objects import names, protect_mark
from cedana_sched_volcano.objects import (
    DEFAULT_QUEUE,
    GROUP_NAME,
    QUEUE_NAME,
    QUEUE_OF_JOB,
    SCHEDULER_NAME,
    PodGroup,
)


class PodQueueResolver:
    """Resolves the Queues of pods.

    Args:
        queue: returns a Queue by its name; None if it does not exist or is not cached yet.
        group: returns a PodGroup by its name and namespace; None likewise.
    """

    def __init__(
        self, queue: Callable[[str], PartialObject | None], group: Callable[[str, str], PodGroup | None]
    ) -> None:
        self._queue = queue
        self._group = group

    def queue_of_new_pod(self, annotations: Mapping[str, str], namespace: str, owner_uid: str) -> PartialObject | None:
        """Return the Queue of a pod; without a PodGroup yet, the one that Volcano will choose by its annotations.

        Args:
            annotations: the pod's.
            namespace: the pod's.
            owner_uid: uid of the pod's controller, or its own if it has none.
        """
        group = self._group(_group_name(annotations, owner_uid), namespace)
        return self._queue(_queue_name_from_annotations(annotations) if group is None else group.queue)

    def policy_of(self, pod: Pod) -> str | None:
        """Return the policy of its Queue; None if the Queue has none, or the PodGroup is unknown."""
        if pod.spec.scheduler_name != SCHEDULER_NAME:
            return None
        metadata = pod.metadata
        name = _group_name(metadata.annotations, (metadata.controller_reference or metadata).uid)
        group = self._group(name, metadata.namespace)
        queue = None if group is None else self._queue(group.queue)
        return policy_of(queue) if queue is not None and is_protecting(queue) else None


def is_protecting(queue: PartialObject) -> bool:
    """Whether the Queue protects all of its pods."""
    return protect_mark.is_protecting(queue.metadata.annotations)


def policy_of(queue: PartialObject) -> str | None:
    """Return the Queue's policy, which an admin set."""
    return queue.metadata.annotations.get(names.POLICY) or None


def _group_name(annotations: Mapping[str, str], owner_uid: str) -> str:
    """Return the PodGroup like `getJobID` (pkg/scheduler/api/job_info.go) and `GeneratePodgroupName` (apis/helpers)."""
    return annotations.get(GROUP_NAME) or f"podgroup-{owner_uid}"


def _queue_name_from_annotations(annotations: Mapping[str, str]) -> str:
    """Return the Queue from annotations: of a vcjob's pod, or for the PodGroup to create (`buildPodGroupFromPod`)."""
    of_job = annotations.get(QUEUE_OF_JOB) if GROUP_NAME in annotations else None
    return of_job or annotations.get(QUEUE_NAME) or DEFAULT_QUEUE
