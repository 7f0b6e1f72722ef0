"""What an agent finds about a pod is an Event on the pod, once for each reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.checkpointable_events import CheckpointableEvents
from cedana_sched.kube.builtin_kinds import Condition, Metadata, Pod, PodStatus
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.model.objects import names

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class _Events:
    def __init__(self) -> None:
        self.published: list[ObjectEvent] = []
        self.sink = CheckpointableEvents(cast("Any", self), lambda: NOW)

    def record_event(self, event: ObjectEvent) -> None:
        self.published.append(event)


@pytest.fixture
def events() -> _Events:
    return _Events()


def pod(status: str = "", reason: str = "UsesIoUring", message: str = "it uses io_uring", ago: float = 0.0) -> Pod:
    at = (NOW - timedelta(seconds=ago)).isoformat()
    conditions = (Condition(names.CHECKPOINTABLE, status, reason, message, at),) if status else ()
    return Pod(Metadata("md-0", "bio", "u1"), status=PodStatus("Running", conditions=conditions))


def test_an_obstacle_is_told_once(events: _Events) -> None:
    events.sink.on_pod_changed(pod(), pod("False"))
    events.sink.on_pod_changed(pod("False"), pod("False", message="it uses io_uring, in another process"))
    [event] = events.published
    assert (event.involved["kind"], event.involved["name"], event.involved["uid"]) == ("Pod", "md-0", "u1")
    assert (event.reason, event.message, event.warning) == ("NotCheckpointable", "it uses io_uring (UsesIoUring)", True)


def test_another_reason_is_told_too(events: _Events) -> None:
    events.sink.on_pod_changed(pod("False"), pod("False", reason="HoldsGPU"))
    events.sink.on_pod_changed(pod("True", reason="NoObstacleFound"), pod("False"))
    assert len(events.published) == 2


def test_what_stands_in_nobodys_way_is_not_told(events: _Events) -> None:
    for now in (pod(), pod("True"), pod("Unknown"), None):
        events.sink.on_pod_changed(pod(), now)
    assert events.published == []


def test_a_new_leader_tells_only_what_is_recent(events: _Events) -> None:
    events.sink.on_pod_changed(None, pod("False", ago=3600))
    assert events.published == []
    events.sink.on_pod_changed(None, pod("False", ago=5))
    assert len(events.published) == 1


def test_a_message_reaches_a_terminal_as_text(events: _Events) -> None:
    """An agent's token may be stolen."""
    events.sink.on_pod_changed(pod(), pod("False", message="\x1b[2Jgone"))
    assert events.published[0].message == "?[2Jgone (UsesIoUring)"
