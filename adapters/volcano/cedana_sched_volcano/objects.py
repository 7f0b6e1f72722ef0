"""Volcano's kinds, reduced to the fields read here; msgspec skips all others.

The webhooks and the extender cache PodGroups, too, and tenants may create any number of them: of each only names are
kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.resources import Resource
from cedana_sched.model.path_segment_validation import LONGEST_OBJECT_NAME

POD_GROUPS: Final = Resource("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups")
GROUP_NAME: Final = register_cached_key("scheduling.k8s.io/group-name")
"""Annotation of a pod: its PodGroup."""
QUEUES: Final = Resource("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False)
QUEUE_NAME: Final = register_cached_key("scheduling.volcano.sh/queue-name")
"""Annotation of a pod without a PodGroup annotation: the Queue of the PodGroup that Volcano creates for it."""
QUEUE_OF_JOB: Final = register_cached_key("volcano.sh/queue-name")
"""Annotation of a vcjob's pods: the Queue, written by Volcano, which reads it on no pod."""
TASK: Final = register_cached_key("volcano.sh/task-spec")
"""Label of a vcjob's pods: their task. The pods of each task are numbered from 0."""
TASK_INDEX: Final = register_cached_key("volcano.sh/task-index")
"""Label of a vcjob's pods: their number within the task."""
VCJOBS: Final = Resource("batch.volcano.sh/v1alpha1", "Job", "jobs")
DEFAULT_QUEUE: Final = "default"
SCHEDULER_NAME: Final = "volcano"


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Spec fields; a `queue` too long to be valid is truncated to an invalid length."""

    min_member: int = 1
    queue: str = ""

    def __post_init__(self) -> None:
        """Truncate the queue."""
        msgspec.structs.force_setattr(self, "queue", self.queue[: LONGEST_OBJECT_NAME + 1])


class PodGroupStatus(msgspec.Struct, frozen=True):
    running: int = 0
    """Count of all its running pods; the scheduler writes it at the end of each cycle, without those just evicted."""


class PodGroup(msgspec.Struct, frozen=True):
    """A PodGroup; `metadata` is reduced to the object's identity."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    def __post_init__(self) -> None:
        """Drop other metadata."""
        known = self.metadata
        named = Metadata(known.name, known.namespace, known.uid, known.resource_version)
        msgspec.structs.force_setattr(self, "metadata", named)

    @property
    def queue(self) -> str:
        """Queue of its pods."""
        return self.spec.queue or DEFAULT_QUEUE
