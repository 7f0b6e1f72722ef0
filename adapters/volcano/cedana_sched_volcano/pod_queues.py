"""In which Queue a pod is. Volcano goes by its PodGroup, and so do we, whatever else stands on the pod.

A pod's annotations are as whoever created it has written them, and so may name a Queue that it is not in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cedana_sched.kube.objects import PartialObject, Pod
from cedana_sched.model.objects import names
from cedana_sched_volcano.objects import (
    DEFAULT_QUEUE,
    GROUP_NAME,
    QUEUE_NAME,
    QUEUE_OF_JOB,
    SCHEDULER_NAME,
    PodGroup,
)


class PodQueues:
    """Finds the Queues of pods.

    Args:
        queue: a Queue by its name; None where there is none, or none is known yet.
        group: a PodGroup by its name and namespace; None likewise.
    """

    def __init__(
        self, queue: Callable[[str], PartialObject | None], group: Callable[[str, str], PodGroup | None]
    ) -> None:
        self._queue = queue
        self._group = group

    def of_new(self, annotations: Mapping[str, str], namespace: str, owner_uid: str) -> PartialObject | None:
        """The Queue of a pod that may have no PodGroup yet: then the one that Volcano will put it into, as it says.

        Args:
            annotations: the pod's.
            namespace: the pod's.
            owner_uid: of the pod's controller, or its own where it has none.
        """
        group = self._group(_group_name(annotations, owner_uid), namespace)
        return self._queue(_said(annotations) if group is None else group.queue)

    def policy_of(self, pod: Pod) -> str | None:
        """The policy of its Queue; None where that one has none, or its PodGroup is not known."""
        if pod.spec.scheduler_name != SCHEDULER_NAME:
            return None
        metadata = pod.metadata
        name = _group_name(metadata.annotations, (metadata.owner or metadata).uid)
        group = self._group(name, metadata.namespace)
        queue = None if group is None else self._queue(group.queue)
        return policy_of(queue) if queue is not None and protects(queue) else None


def protects(queue: PartialObject) -> bool:
    """Whether it protects all of its pods."""
    return queue.metadata.annotations.get(names.PROTECT) == "true"


def policy_of(queue: PartialObject) -> str | None:
    """The policy that an admin has given it."""
    return queue.metadata.annotations.get(names.POLICY) or None


def _group_name(annotations: Mapping[str, str], owner_uid: str) -> str:
    """`getJobID` (pkg/scheduler/api/job_info.go); without the annotation `GeneratePodgroupName` (apis/helpers)."""
    return annotations.get(GROUP_NAME) or f"podgroup-{owner_uid}"


def _said(annotations: Mapping[str, str]) -> str:
    """A vcjob's pods name their PodGroup; of another pod that names none Volcano makes one (`buildPodGroupFromPod`)."""
    of_job = annotations.get(QUEUE_OF_JOB) if GROUP_NAME in annotations else None
    return of_job or annotations.get(QUEUE_NAME) or DEFAULT_QUEUE
