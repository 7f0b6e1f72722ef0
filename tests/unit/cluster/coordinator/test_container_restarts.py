"""A container that the kubelet starts anew in a pod with a snapshot does so aloud."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.container_restarts import ContainerRestarts
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.kube.builtin_kinds import ContainerStatus, Metadata, OwnerReference, Pod, PodStatus
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from tests.unit.cluster.coordinator.filled_mirrors import filled, shown_restore

OWNER = OwnerReference("batch/v1", "Job", "md", "uid-of-md", controller=True)


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def pod(restarts: int, phase: str = "Running", started: float | None = None) -> Pod:
    """`started`: in seconds before `NOW`."""
    metadata = Metadata("md-0", "bio", "u1", annotations={names.ID: "md", names.INDEX: "3"}, owner_references=(OWNER,))
    state = {} if started is None else {"running": {"startedAt": (NOW - timedelta(seconds=started)).isoformat()}}
    main = ContainerStatus("main", state, restarts)
    return Pod(metadata, status=PodStatus(phase=phase, container_statuses=(main,)))


class Field:
    """What it is given, and what it said."""

    def __init__(self, *generations: int, index: int = 3) -> None:
        self.said: list[ObjectEvent] = []
        self.known = tuple(SnapshotRef(Identity("bio", "md", index), one) for one in generations)
        self.restores: Informer[OrderedObject] = filled(shown_restore("md-0", "u1"))
        self.restores.synced.set()
        self.synced = asyncio.Event()
        self.synced.set()
        self.committed: dict[str, float] = {}
        """By uid of a pod: when its snapshot was committed, in seconds before `NOW`."""
        beginnings = IncarnationNumbers(self.restores)
        self.restarts = ContainerRestarts(cast("Any", self), cast("Any", self), beginnings, lambda: NOW)
        self._last: Pod | None = None

    def record_event(self, event: ObjectEvent) -> None:
        self.said.append(event)

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[SnapshotRef, ...]:
        assert (namespace, identifier) == ("bio", "md")
        return self.known

    def has_pod_snapshot_before(self, pod_uid: str, identity: Identity, before: float) -> bool:
        assert identity == Identity("bio", "md", 3)
        return pod_uid in self.committed and NOW.timestamp() - self.committed[pod_uid] < before

    async def begins_to_lead(self, *pods: Pod) -> list[str]:
        """As `shows`, of what is there then."""
        self.said.clear()
        informer: Informer[Pod] = filled(*pods)
        informer.synced.set()
        for now in pods:
            self.restarts.on_pod_changed(None, now)
        await self.restarts.run(informer)
        return [event.involved["kind"] for event in self.said]

    def shows(self, *pods: Pod | None) -> list[str]:
        """How many Events that made, on whom."""
        self.said.clear()
        for now in pods:
            self.restarts.on_pod_changed(self._last, now)
            self._last = now
        return [event.involved["kind"] for event in self.said]


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
    field.restores._put(shown_restore("md-0", "u1", replaced_by="c2"))
    assert field.shows(pod(0), pod(1)) == []
    assert field.shows(pod(2)) == ["Pod", "Job"]


async def test_restart_while_nobody_led_is_published_by_the_next_leader() -> None:
    field = Field(5)
    field.committed["u1"] = 60.0
    assert await field.begins_to_lead(pod(1, started=20.0)) == ["Pod", "Job"]
    assert "restart 1" in field.said[0].message
    assert field.shows(pod(1, started=20.0)) == []
    assert field.shows(pod(2, started=0.0)) == ["Pod", "Job"]


@pytest.mark.parametrize(
    ("seen", "committed"),
    [
        (pod(3), 60.0),
        (pod(0, started=20.0), 60.0),
        (pod(1, started=20.0), 10.0),
        (pod(1, started=20.0), None),
        (pod(1, started=2_000.0), 3_000.0),
    ],
    ids=["not running", "not restarted", "saved since", "another pod's snapshot", "long ago"],
)
async def test_what_lost_nothing_or_long_ago_is_not_published(seen: Pod, committed: float | None) -> None:
    field = Field(5)
    if committed is not None:
        field.committed["u1"] = committed
    assert await field.begins_to_lead(seen) == []


async def test_pod_that_began_again_as_a_whole_is_a_return() -> None:
    field = Field(5)
    field.committed["u1"] = 60.0
    field.restores._put(shown_restore("md-0", "u1", replaced_by="c2"))
    assert await field.begins_to_lead(pod(1, started=20.0)) == []


@pytest.mark.parametrize("begun", [(0,), (2,), (0, 1), (1, 0)])
@pytest.mark.parametrize(("started", "published"), [(20.0, ["Pod", "Job"]), (55.0, []), (70.0, [])])
async def test_restart_of_a_returned_pod_while_nobody_led_is_published(
    begun: tuple[int, ...], started: float, published: list[str]
) -> None:
    """Nothing was saved of this very pod, but it was continued a minute ago, perhaps not for the first time."""
    field = Field(5)
    continued = (NOW - timedelta(seconds=60)).isoformat()
    field.restores._drop(shown_restore("md-0", "u1"))
    for beginning in begun:
        again = "c2" if beginning < max(begun) else None
        field.restores._put(shown_restore("md-0", "u1", beginning, again, running_at=continued))
    assert await field.begins_to_lead(pod(1, started=started)) == published


def test_pod_that_is_over_is_forgotten() -> None:
    field = Field(5)
    field.shows(pod(0), pod(0, phase="Failed"))
    assert field.restarts._seen == {}
    field.shows(pod(0), None)
    assert field.restarts._seen == {}
