"""What it takes to save a pod, estimated from its snapshots and its resources: pure.

A pod that was saved before moves what has changed since: as much in proportion as between its last two snapshots, and
never more than all of it. Without a measurement its memory counts, by its limit or request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import read_time
from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.kube.quantities import parse_thousandths, parse_whole
from cedana_sched_kubernetes.save_planning import PodToSave

UNKNOWN_MEMORY_BYTES: Final = 1 << 30
"""Of a pod without a measurement, limit or request."""
BYTES_OF_A_CORE: Final = 4 << 30
"""A pod that requests more memory than this for each of its cores keeps that many cores idle."""
LEAST_CORES: Final = 0.1
"""A pod that requests nothing still works."""


class Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class ContainerOfPod(msgspec.Struct, frozen=True):
    name: str = ""
    resources: Resources = Resources()


class SpecOfPod(msgspec.Struct, frozen=True):
    containers: tuple[ContainerOfPod, ...] = ()


class MetadataOfPod(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    creation_timestamp: str | None = None


class StatusOfPod(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None
    container_statuses: tuple[ContainerOfPod, ...] = ()
    """Their resources are those that the node grants; absent before Kubernetes 1.33."""


class PodResources(msgspec.Struct, frozen=True):
    """A pod, reduced to its resources, and since when it runs.

    Tenants may request other resources of a running pod (`pods/resize`), also some that its node never grants. Of those
    that are requested and those that are granted, the ones count that have the pod saved later.
    """

    metadata: MetadataOfPod
    spec: SpecOfPod = SpecOfPod()
    status: StatusOfPod = StatusOfPod()

    @property
    def memory_bytes(self) -> int:
        """Memory that it may have, by limits, else requests; 0 if it has neither."""
        granted = self._granted()
        return sum(
            max(_amount(one.resources), _amount(granted.get(one.name, one.resources))) for one in self.spec.containers
        )

    @property
    def cores(self) -> float:
        """Cores that no other pod can use while it runs."""
        granted = self._granted()
        pairs = [
            (one.resources.requests, granted.get(one.name, one.resources).requests) for one in self.spec.containers
        ]
        cores = sum(min(parse_thousandths(one.get("cpu", "0")) for one in pair) for pair in pairs) / 1_000
        memory = sum(min(parse_whole(one.get("memory", "0")) for one in pair) for pair in pairs)
        return max(cores, memory / BYTES_OF_A_CORE, LEAST_CORES)

    def runs_since(self, now: float) -> float:
        """Return when it started (epoch seconds): not before it was created, whatever its status has."""
        started_at = read_time(self.status.start_time)
        return now if started_at is None else max(started_at, read_time(self.metadata.creation_timestamp) or 0.0)

    def _granted(self) -> dict[str, Resources]:
        """Return what the node grants, by container, as far as it reports that."""
        statuses = self.status.container_statuses
        return {one.name: one.resources for one in statuses if one.resources.requests or one.resources.limits}


def _amount(resources: Resources) -> int:
    return max(parse_whole(resources.limits.get("memory") or resources.requests.get("memory", "0")), 0)


def estimate_save(
    pod: PodResources, snapshots: Sequence[MeasuredCheckpoint], bytes_per_second: float, now: float
) -> PodToSave:
    """Return what the save of a pod takes, and what is lost without it.

    Args:
        pod: a running pod.
        snapshots: its own that can be restored, of the node where it runs, those committed first first.
        bytes_per_second: at which its bytes are expected to move.
        now: seconds since the epoch.
    """
    since = (snapshots[-1].committed_at if snapshots else None) or pod.runs_since(now)
    work = max(now - since, 0.0) * pod.cores
    return PodToSave(pod.metadata.uid, _bytes_to_move(pod, snapshots, now), work, bytes_per_second)


def _bytes_to_move(pod: PodResources, own: Sequence[MeasuredCheckpoint], now: float) -> int:
    if not own:
        return pod.memory_bytes or UNKNOWN_MEMORY_BYTES
    newest = own[-1]
    if len(own) == 1:
        return newest.used_bytes
    between = (newest.committed_at or 0.0) - (own[-2].committed_at or 0.0)
    since = max(now - (newest.committed_at or 0.0), 0.0)
    changed = newest.moved_bytes * since / between if between > 0 else newest.used_bytes
    return min(math.ceil(changed), newest.used_bytes)
