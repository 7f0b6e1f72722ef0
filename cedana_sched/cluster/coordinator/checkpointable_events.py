"""Publishes on a pod that a checkpoint of it would fail, as the agent's condition on the pod says.

An agent may write no Events about pods: nothing in an Event says to which node its pod belongs, so no policy could
restrict an agent to the pods of its own node, as it restricts the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from cedana_sched.kube.builtin_kinds import Condition, Pod, read_time
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.texts import printable_text

EVENT_REASON: Final = "NotCheckpointable"
LATE_SECONDS: Final = 60.0
"""An earlier leader most likely published older conditions."""


class CheckpointableEvents:
    """Sink of the informer of protected pods.

    Args:
        events: publishes Events.
        now: the time of day.
    """

    def __init__(self, events: EventRecorder, now: Callable[[], datetime] = SERVER_TIME.now) -> None:
        self._events = events
        self._now = now

    def on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        """Publish each new reason once."""
        if now is None or now.finished or (condition := now.checkpointable) is None or condition.status != "False":
            return
        if before is None:
            is_new = self._is_recent(condition)
        else:
            known = before.checkpointable
            is_new = known is None or (known.status, known.reason) != (condition.status, condition.reason)
        if is_new:
            metadata = now.metadata
            involved = PODS.reference(metadata.name, metadata.namespace, metadata.uid)
            text = f"{printable_text(condition.message)} ({printable_text(condition.reason)})"
            self._events.record_event(ObjectEvent(involved, EVENT_REASON, text, warning=True))

    def _is_recent(self, condition: Condition) -> bool:
        changed = read_time(condition.last_transition_time)
        return changed is not None and self._now().timestamp() - changed < LATE_SECONDS
