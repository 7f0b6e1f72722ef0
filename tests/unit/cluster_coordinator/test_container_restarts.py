"""A container that the kubelet starts anew in a pod with a snapshot does so aloud."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.agents import OrderObject
from cedana_sched.cluster.coordinator.beginnings import Beginnings
from cedana_sched.cluster.coordinator.restarts import ContainerRestarts
from cedana_sched.kube.events import Happening
from cedana_sched.kube.objects import ContainerStatus, Metadata, OwnerReference, Pod, PodStatus
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from tests.unit.cluster_coordinator.filled_mirrors import filled, shown_restore

OWNER = OwnerReference("batch/v1", "Job", "md", "uid-of-md", controller=True)


def pod(restarts: int, phase: str = "Running") -> Pod:
    metadata = Metadata("md-0", "bio", "u1", annotations={names.ID: "md", names.INDEX: "3"}, owner_references=(OWNER,))
    main = ContainerStatus("main", {}, restarts)
    return Pod(metadata, status=PodStatus(phase=phase, container_statuses=(main,)))


class Field:
    """What it is given, and what it said."""

    def __init__(self, *generations: int, index: int = 3) -> None:
        self.said: list[Happening] = []
        self.known = tuple(SnapshotRef(Identity("bio", "md", index), one) for one in generations)
        self.restores: Mirror[OrderObject] = filled(shown_restore("md-0", "u1"))
        self.restarts = ContainerRestarts(cast("Any", self), cast("Any", self), Beginnings(self.restores))
        self._last: Pod | None = None

    def tell(self, happening: Happening) -> None:
        self.said.append(happening)

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[SnapshotRef, ...]:
        assert (namespace, identifier) == ("bio", "md")
        return self.known

    def shows(self, *pods: Pod | None) -> list[str]:
        """How many Events that made, on whom."""
        self.said.clear()
        for now in pods:
            self.restarts.heard(self._last, now)
            self._last = now
        return [happening.involved["kind"] for happening in self.said]


def test_restart_in_place_is_told_on_the_pod_and_its_owner() -> None:
    field = Field(4, 5)
    assert field.shows(pod(0), pod(1)) == ["Pod", "Job"]
    assert field.said[0].message == (
        "Container main of md-0 was started from its beginning by the kubelet (restart 1), not from md/3@5: delete the"
        " pod to have its successor continue from there"
    )
    assert (field.said[0].reason, field.said[0].warning) == ("ColdStart", True)
    assert field.shows(pod(1)) == []
    assert field.shows(pod(2)) == ["Pod", "Job"]


@pytest.mark.parametrize("field", [Field(), Field(7, index=2)], ids=["none", "another replica's"])
def test_without_a_snapshot_there_is_nothing_to_tell(field: Field) -> None:
    assert field.shows(pod(0), pod(1)) == []


def test_pod_that_begins_again_as_a_whole_is_told_of_by_its_return() -> None:
    field = Field(5)
    assert field.shows(pod(0)) == []
    field.restores._put(shown_restore("md-0", "u1", begins_again="c2"))
    assert field.shows(pod(0), pod(1)) == []
    assert field.shows(pod(2)) == ["Pod", "Job"]


def test_what_was_restarted_before_anybody_looked_is_not_told() -> None:
    assert Field(5).shows(pod(3)) == []


def test_pod_that_is_over_is_forgotten() -> None:
    field = Field(5)
    field.shows(pod(0), pod(0, phase="Failed"))
    assert field.restarts._seen == {}
    field.shows(pod(0), None)
    assert field.restarts._seen == {}
