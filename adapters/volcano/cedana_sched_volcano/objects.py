"""Volcano's kinds as far as we read them; msgspec skips everything else."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.kept import kept
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import Resource

POD_GROUPS: Final = Resource("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups")
GROUP_NAME: Final = kept("scheduling.k8s.io/group-name")
"""Annotation of a pod: the PodGroup that it belongs to."""
QUEUES: Final = Resource("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False)
QUEUE_NAME: Final = kept("scheduling.volcano.sh/queue-name")
"""Annotation of a pod: its Queue, without which it is in `DEFAULT_QUEUE`."""
QUEUE_OF_JOB: Final = kept("volcano.sh/queue-name")
"""The same on pods of a vcjob, where Volcano writes it."""
DEFAULT_QUEUE: Final = "default"
SCHEDULER_NAME: Final = "volcano"


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    min_member: int = 1


class PodGroupStatus(msgspec.Struct, frozen=True):
    running: int = 0
    """Of all its pods; the scheduler writes it at the end of each cycle, those that it has just evicted left out."""


class PodGroup(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
