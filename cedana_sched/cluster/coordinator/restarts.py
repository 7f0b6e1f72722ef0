"""Says aloud that the kubelet has started a container from its beginning in a pod that has a snapshot.

A container that ends in a pod with `restartPolicy: OnFailure` or `Always` is started again in place, by its own owner's
wish: it is not continued. Nobody may believe that it was. What begins again as a whole, because the pod's sandbox was
made anew, is another return of the pod (`PodReports`), and not told here, if the pod has a restore container.
"""

from __future__ import annotations

from cedana_sched.adapter.pods import find_identity
from cedana_sched.cluster.coordinator.beginnings import Beginnings
from cedana_sched.cluster.coordinator.known import ById
from cedana_sched.cluster.coordinator.owners import pod_and_owner
from cedana_sched.coordinator.core.words import short
from cedana_sched.kube.events import EventRecorder, Happening
from cedana_sched.kube.objects import Pod
from cedana_sched.model.identity import SnapshotRef


class ContainerRestarts:
    """The restarts of all protected pods. Those that nobody saw, because nobody led, are not told.

    Args:
        events: writes them.
        snapshots: what there is to continue from.
        beginnings: of returning pods.
    """

    def __init__(self, events: EventRecorder, snapshots: ById, beginnings: Beginnings) -> None:
        self._events = events
        self._beginnings = beginnings
        self._snapshots = snapshots
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}
        """By uid of a pod and name of a container: the pod's beginning, and the container's restarts."""

    def heard(self, before: Pod | None, now: Pod | None) -> None:
        """Sink of the mirror of protected pods."""
        if now is None or now.finished:
            one = now or before
            if one is not None:
                self._seen.pop(one.metadata.uid, None)
            return
        seen = self._seen.setdefault(now.metadata.uid, {})
        beginning = self._beginnings.of(now.metadata.uid)
        for status in now.status.container_statuses:
            known, seen[status.name] = seen.get(status.name), (beginning, status.restart_count)
            if known is None or status.restart_count <= known[1]:
                if known is not None:
                    seen[status.name] = known
            elif known[0] == beginning and (newest := self._newest(now)) is not None:
                self._tell(now, status.name, status.restart_count, newest)

    def _newest(self, pod: Pod) -> SnapshotRef | None:
        identity = find_identity(pod)
        if identity is None:
            return None
        known = self._snapshots.snapshots_of(identity.namespace, identity.id)
        mine = (ref for ref in known if ref.identity.index == identity.index)
        return max(mine, key=lambda ref: ref.generation, default=None)

    def _tell(self, pod: Pod, container: str, count: int, newest: SnapshotRef) -> None:
        metadata = pod.metadata
        text = (
            f"Container {container} of {metadata.name} was started from its beginning by the kubelet (restart {count}),"
            f" not from {short(newest)}: delete the pod to have its successor continue from there"
        )
        for one in pod_and_owner(metadata):
            self._events.tell(Happening(one, "ColdStart", text, warning=True))
