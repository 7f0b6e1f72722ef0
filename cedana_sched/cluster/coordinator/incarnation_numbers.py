"""Incarnation numbers of pods, from their Restores: the single source of these numbers.

A pod whose sandbox was recreated, or whose restore container failed, starts another incarnation under the same uid. The
node's agent records that permanently in the status of the pod's latest Restore; the next incarnation's number follows
from it. So a coordinator that was down meanwhile finds it, and reading it twice yields the same number.
"""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer

Sink = Callable[[str, str], None]


class IncarnationNumbers:
    """The incarnations of all pods.

    Args:
        restores: those that the journal tracks.
    """

    def __init__(self, restores: Informer[OrderedObject]) -> None:
        self.synced = restores.synced
        self._of_pod = Index(lambda one: one.spec.pod_ref.uid, restores)
        self._sinks: list[Sink] = []
        restores.subscribe(self._on_restore_changed)

    def latest_incarnation_of(self, pod_uid: str) -> int:
        """Return the latest known incarnation of a pod; the first one is 0."""
        return max(map(_latest_incarnation, self._of_pod.objects_of(pod_uid)), default=0)

    def restore_time_of(self, pod_uid: str) -> float | None:
        """Return when the pod's latest incarnation was restored; see `OrderedObject.restored_at`."""
        latest = max(self._of_pod.objects_of(pod_uid), key=lambda one: one.status.incarnation, default=None)
        return latest.restored_at if latest is not None and latest.status.replaced_by is None else None

    def subscribe(self, sink: Sink) -> None:
        """Call `sink(namespace, name)` for each pod with a new incarnation. The sink must not block."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Sink) -> None:
        self._sinks.remove(sink)

    def _on_restore_changed(self, before: OrderedObject | None, now: OrderedObject | None) -> None:
        if now is None or now.status.replaced_by is None:
            return
        if before is None or before.status.replaced_by is None:
            for sink in tuple(self._sinks):
                sink(now.metadata.namespace, now.spec.pod_ref.name)


def _latest_incarnation(restore: OrderedObject) -> int:
    return restore.status.incarnation + (restore.status.replaced_by is not None)
