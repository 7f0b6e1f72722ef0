"""What it takes to save the pods of a node, estimated from its Checkpoints and the pods' resources: pure.

A pod that was saved before moves what has changed since: as much in proportion as between its last two snapshots, and
never more than all of it. Without a measurement its memory counts, by its limit or request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import read_time
from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.kube.quantities import parse_thousandths, parse_whole
from cedana_sched_kubernetes.save_planning import OVERHEAD_SECONDS, PodToSave

ASSUMED_BYTES_PER_SECOND: Final = 100e6
"""Where no Checkpoint of the node has moved enough to measure: a bucket over a network of 1 Gbit/s."""
MEASURABLE_BYTES: Final = 16 << 20
"""A Checkpoint that moves less takes as long as its overhead."""
MEASURED: Final = 10
"""Newest Checkpoints of the node whose rate counts."""
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
    resources: Resources = Resources()


class SpecOfPod(msgspec.Struct, frozen=True):
    containers: tuple[ContainerOfPod, ...] = ()


class MetadataOfPod(msgspec.Struct, frozen=True):
    uid: str = ""


class StatusOfPod(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None


class PodResources(msgspec.Struct, frozen=True):
    """A pod, reduced to what it requests, and since when it runs."""

    metadata: MetadataOfPod
    spec: SpecOfPod = SpecOfPod()
    status: StatusOfPod = StatusOfPod()

    @property
    def memory_bytes(self) -> int:
        """Memory that it may have, by limits, else requests; 0 if it has neither."""
        return sum(_amount(container, "memory") for container in self.spec.containers)

    @property
    def cores(self) -> float:
        """Cores that no other pod can use while it runs."""
        resources = [container.resources.requests for container in self.spec.containers]
        cores = sum(parse_thousandths(one.get("cpu", "0")) for one in resources) / 1_000
        memory = sum(parse_whole(one.get("memory", "0")) for one in resources)
        return max(cores, memory / BYTES_OF_A_CORE, LEAST_CORES)


def _amount(container: ContainerOfPod, name: str) -> int:
    resources = container.resources
    return max(parse_whole(resources.limits.get(name) or resources.requests.get(name, "0")), 0)


def measured_rate(checkpoints: Iterable[MeasuredCheckpoint]) -> float:
    """Return the bytes per second that the newest Checkpoints of a node moved, or what is assumed without any.

    Saves that overlapped shared the rate: the time in which any of them was in progress counts once.
    """
    measured = [
        (committed_at - seconds, committed_at, one.moved_bytes)
        for one in checkpoints
        if one.moved_bytes >= MEASURABLE_BYTES
        and (seconds := one.frozen_seconds)
        and (committed_at := one.committed_at) is not None
    ]
    newest = nlargest(MEASURED, measured, key=itemgetter(1))
    if not newest:
        return ASSUMED_BYTES_PER_SECOND
    busy = (max(seconds - OVERHEAD_SECONDS, seconds / 2) for seconds in _busy_periods(newest))
    return sum(moved for *_, moved in newest) / math.fsum(busy)


def _busy_periods(saves: Iterable[tuple[float, float, int]]) -> Iterator[float]:
    """Yield the seconds of each period in which at least one save was in progress; a save begins with start and end."""
    period: tuple[float, float] | None = None
    for start, end, _ in sorted(saves):
        if period is not None and start <= period[1]:
            period = (period[0], max(period[1], end))
            continue
        if period is not None:
            yield period[1] - period[0]
        period = (start, end)
    if period is not None:
        yield period[1] - period[0]


def estimate_save(pod: PodResources, checkpoints: Iterable[MeasuredCheckpoint], now: float) -> PodToSave:
    """Return what the save of a pod takes, and what is lost without it.

    Args:
        pod: a running pod.
        checkpoints: of its node, those of other pods included.
        now: seconds since the epoch.
    """
    own = sorted(
        (
            one
            for one in checkpoints
            if one.spec.pod_ref.uid == pod.metadata.uid and one.restorable_generation is not None and one.committed_at
        ),
        key=lambda one: one.committed_at or 0.0,
    )
    since = (own[-1].committed_at if own else None) or read_time(pod.status.start_time) or now
    return PodToSave(pod.metadata.uid, _bytes_to_move(pod, own, now), max(now - since, 0.0) * pod.cores)


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
