"""Volcano's kinds as far as we read them; msgspec skips everything else."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import Resource

POD_GROUPS: Final = Resource("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups")
GROUP_NAME: Final = "scheduling.k8s.io/group-name"
"""Annotation of a pod: the PodGroup that it belongs to."""
SCHEDULER_NAME: Final = "volcano"


class PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    min_member: int = 1


class PodGroup(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
