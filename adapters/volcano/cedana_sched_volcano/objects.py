"""Volcano's kinds as far as we read them; msgspec skips everything else.

PodGroups are kept by the webhooks and the extender as well, and tenants may make any number of them: of each there is
no more than names.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.kept import kept
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import Resource
from cedana_sched.model.segments import LONGEST_OBJECT_NAME

POD_GROUPS: Final = Resource("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups")
GROUP_NAME: Final = kept("scheduling.k8s.io/group-name")
"""Annotation of a pod: the PodGroup that it belongs to."""
QUEUES: Final = Resource("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False)
QUEUE_NAME: Final = kept("scheduling.volcano.sh/queue-name")
"""Annotation of a pod that names no PodGroup: the Queue of the one that Volcano makes for it."""
QUEUE_OF_JOB: Final = kept("volcano.sh/queue-name")
"""Annotation of a vcjob's pods: the Queue, as Volcano writes it there. It reads it on no pod."""
DEFAULT_QUEUE: Final = "default"
SCHEDULER_NAME: Final = "volcano"


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Of a `queue` that is too long to be any, there is enough to show that."""

    min_member: int = 1
    queue: str = ""

    def __post_init__(self) -> None:
        """Let go what nobody reads."""
        msgspec.structs.force_setattr(self, "queue", self.queue[: LONGEST_OBJECT_NAME + 1])


class PodGroupStatus(msgspec.Struct, frozen=True):
    running: int = 0
    """Of all its pods; the scheduler writes it at the end of each cycle, those that it has just evicted left out."""


class PodGroup(msgspec.Struct, frozen=True):
    """Of `metadata` there is which object it is."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    def __post_init__(self) -> None:
        """Let go what nobody reads."""
        known = self.metadata
        named = Metadata(known.name, known.namespace, known.uid, known.resource_version)
        msgspec.structs.force_setattr(self, "metadata", named)

    @property
    def queue(self) -> str:
        """The Queue that its pods are in."""
        return self.spec.queue or DEFAULT_QUEUE
