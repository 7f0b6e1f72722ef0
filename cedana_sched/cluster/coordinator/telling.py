"""What the coordinator tells, as Events on the objects that people look at: the held object, and the pod."""

from __future__ import annotations

from cedana_sched.coordinator.core import Tell
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.coordinator.ports import Listener
from cedana_sched.kube.events import EventRecorder, Happening
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Mirror


class Listeners:
    """Implements `coordinator.ports.Listener` for several."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def told(self, tell: Tell) -> None:
        """See `coordinator.ports.Listener`."""
        for listener in self._listeners:
            listener.told(tell)


class TellEvents:
    """Implements `coordinator.ports.Listener`.

    Args:
        events: writes them.
        pods: all protected pods; who controls one hears of its return.
    """

    def __init__(self, events: EventRecorder, pods: Mirror[Pod]) -> None:
        self._events = events
        self._pods = pods

    def told(self, tell: Tell) -> None:
        """See `coordinator.ports.Listener`."""
        for involved in self._involved(tell):
            self._events.tell(Happening(involved, tell.kind, tell.text, tell.severity is Severity.WARNING))

    def _involved(self, tell: Tell) -> list[dict[str, str]]:
        """A Job is what its owner describes; his pod may be gone by then."""
        involved = []
        if (owner := _held(tell) or self._controller(tell)) is not None:
            involved.append(owner)
        if (pod := tell.workload) is not None:
            involved.append(PODS.reference(pod.name, pod.namespace, pod.uid))
        return involved

    def _controller(self, tell: Tell) -> dict[str, str] | None:
        """Of the pod that it is about, such as its Job."""
        if tell.workload is None:
            return None
        pod = self._pods.get(tell.workload.name, tell.workload.namespace)
        if pod is None or pod.metadata.uid != tell.workload.uid or (owner := pod.metadata.owner) is None:
            return None
        return _reference(owner.api_version, owner.kind, tell.workload.namespace, owner.name, owner.uid)


def _held(tell: Tell) -> dict[str, str] | None:
    if (held := tell.held) is None:
        return None
    return _reference(held.api_version, held.kind, held.namespace, held.name, held.uid)


def _reference(api_version: str, kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "uid": uid}
