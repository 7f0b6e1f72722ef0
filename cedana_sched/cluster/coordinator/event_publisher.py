"""Publishes Events on the objects that users inspect: the held object, and the pod."""

from __future__ import annotations

from cedana_sched.cluster.coordinator.owner_references import held_reference, owner_reference
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.coordinator.ports import EventListener
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer

MOST_VICTIMS = 20
"""Maximum victims of one eviction that get its Events; each Event is a write."""


class EventListeners:
    """Implements `coordinator.ports.EventListener`: fans out to several."""

    def __init__(self, *listeners: EventListener) -> None:
        self._listeners = listeners

    def on_event(self, event: PublishEvent) -> None:
        """See `coordinator.ports.EventListener`."""
        for listener in self._listeners:
            listener.on_event(event)


class EventPublisher:
    """Implements `coordinator.ports.EventListener`.

    Args:
        events: publishes Events.
        pods: all protected pods; a pod's restore is published on its controller, too.
    """

    def __init__(self, events: EventRecorder, pods: Informer[Pod]) -> None:
        self._events = events
        self._pods = pods

    def on_event(self, event: PublishEvent) -> None:
        """See `coordinator.ports.EventListener`."""
        for involved in self._involved_objects(event):
            self._events.record_event(ObjectEvent(involved, event.kind, event.text, event.severity is Severity.WARNING))

    def _involved_objects(self, event: PublishEvent) -> list[dict[str, str]]:
        """Include the controller, because users run `kubectl describe job`.

        An eviction of single pods, as Volcano's and Armada's are, has no other object: its failures are published on
        the pods.
        """
        involved = []
        if event.severity is Severity.WARNING:
            involved += [PODS.reference(one.name, one.namespace, one.uid) for one in event.victims[:MOST_VICTIMS]]
        owner = held_reference(event.held) if event.held is not None else self._controller_reference_of(event)
        if owner is not None:
            involved.append(owner)
        if (pod := event.workload) is not None:
            involved.append(PODS.reference(pod.name, pod.namespace, pod.uid))
        return involved

    def _controller_reference_of(self, event: PublishEvent) -> dict[str, str] | None:
        """Return a reference to the pod's controller, such as its Job."""
        if event.workload is None:
            return None
        pod = self._pods.get(event.workload.name, event.workload.namespace)
        if pod is None or pod.metadata.uid != event.workload.uid:
            return None
        return owner_reference(pod.metadata)
