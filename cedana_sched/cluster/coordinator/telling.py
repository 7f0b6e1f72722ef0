"""What the coordinator tells, as Events on the objects that people look at: the held object, and the pod."""

from __future__ import annotations

from cedana_sched.coordinator.core import Tell
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.coordinator.ports import Listener
from cedana_sched.kube.events import EventRecorder, Happening
from cedana_sched.kube.resources import PODS


class Listeners:
    """Implements `coordinator.ports.Listener` for several."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def told(self, tell: Tell) -> None:
        """See `coordinator.ports.Listener`."""
        for listener in self._listeners:
            listener.told(tell)


class TellEvents:
    """Implements `coordinator.ports.Listener`."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def told(self, tell: Tell) -> None:
        """See `coordinator.ports.Listener`."""
        for involved in _involved(tell):
            self._events.tell(Happening(involved, tell.kind, tell.text, tell.severity is Severity.WARNING))


def _involved(tell: Tell) -> list[dict[str, str]]:
    """A Job is what its owner describes; his pod may be gone by then."""
    involved = []
    if (held := tell.held) is not None:
        involved.append(
            {
                "apiVersion": held.api_version,
                "kind": held.kind,
                "namespace": held.namespace,
                "name": held.name,
                "uid": held.uid,
            }
        )
    if (pod := tell.workload) is not None:
        involved.append(PODS.reference(pod.name, pod.namespace, pod.uid))
    return involved
