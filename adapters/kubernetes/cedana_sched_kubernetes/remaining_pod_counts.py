"""How many pods a controller has, by age: kept from the cached pods, instead of a scan or a list for each deletion."""

from __future__ import annotations

from bisect import bisect_left, insort

from cedana_sched.kube.builtin_kinds import Metadata, Pod, read_time

ControllerKey = tuple[str, str]
"""Namespace and uid of a controller."""


class RemainingPodCounts:
    """Counts the pods of each controller that are neither deleted nor ended; `on_pod_change` must get each change."""

    def __init__(self) -> None:
        self._created_at: dict[ControllerKey, list[float]] = {}
        """Ascending, in seconds since the epoch."""

    def on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Record a change; a sink for `Informer.subscribe`."""
        if before is not None and (entry := _entry_of(before)) is not None:
            controller, created_at = entry
            times = self._created_at[controller]
            del times[bisect_left(times, created_at)]
            if not times:
                del self._created_at[controller]
        if now is not None and (entry := _entry_of(now)) is not None:
            controller, created_at = entry
            insort(self._created_at.setdefault(controller, []), created_at)

    def count_older(self, controller: ControllerKey, than: float) -> int:
        """Return how many of its pods were created before this time, in seconds since the epoch."""
        return bisect_left(self._created_at.get(controller, []), than)


def creation_time_unless_deleted(metadata: Metadata) -> float | None:
    """Return when the object was created, in seconds since the epoch, whole ones; None if it is being deleted."""
    return read_time(metadata.creation_timestamp) if metadata.deletion_timestamp is None else None


def _entry_of(pod: Pod) -> tuple[ControllerKey, float] | None:
    controller, created_at = pod.metadata.controller_reference, creation_time_unless_deleted(pod.metadata)
    if controller is None or created_at is None or pod.finished:
        return None
    return (pod.metadata.namespace, controller.uid), created_at
