"""Object writes that the API server refuses, reported as a metric and as an Event on the pod."""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.cluster.coordinator.owner_references import held_reference
from cedana_sched.cluster.coordinator.record_objects import resource_of
from cedana_sched.kube.errors import ApiError, ApiUnavailableError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.model.records import PreemptionHold, Record

REASON = "RecordWriteRejected"


class RejectedWrites:
    """Implements `projection.OnWriteRejected`.

    Args:
        events: publishes Events.
        counted: called with the kind of each object whose write was refused, and the HTTP status.
    """

    def __init__(self, events: EventRecorder, counted: Callable[[str, int], None]) -> None:
        self._events = events
        self._counted = counted

    def on_write_rejected(self, record: Record, error: ApiError, is_first: bool) -> None:  # noqa: FBT001 - as `OnWriteRejected` has it
        """Count it. A refusal that the user can remedy is published once, until a write of the object succeeds."""
        kind = resource_of(record).kind
        self._counted(kind, error.status)
        if not is_first or isinstance(error, ApiUnavailableError) or (involved := _involved_object(record)) is None:
            return
        text = f"its {kind} cannot be written, and it does not proceed before that: {error}"
        self._events.record_event(ObjectEvent(involved, REASON, text, warning=True))


def _involved_object(record: Record) -> dict[str, str] | None:
    if isinstance(record, PreemptionHold):
        return held_reference(record.held) if record.held is not None else None
    pod = record.workload
    return PODS.reference(pod.name, pod.namespace, pod.uid)
