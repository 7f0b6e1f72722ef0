"""A pod says, in a condition, whether it can be saved: written when that is new, or on request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.agent.inspection_schedule import Look
from cedana_sched.agent.workload_inspections import WorkloadInspections
from cedana_sched.agent.workload_preflight import FoundObstacle, Inspection
from cedana_sched.cluster.node.checkpointable_condition import CheckpointableConditions, PodInspections
from cedana_sched.kube.builtin_kinds import Container, ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.testing.api import FakeApi

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RING = Inspection(FoundObstacle("UsesIoUring", "process 7 (node) uses io_uring: switch it off"))
OTHERS = [{"type": "Ready", "status": "True"}, {"type": "a.b/Own", "status": "True", "reason": "Mine"}]


class _Cluster:
    """One pod on an API server, and the agent of its node."""

    def __init__(self, conditions: list[Object] | None = None) -> None:
        self.api = FakeApi()
        body: Object = {"metadata": {"name": "md-0", "namespace": "bio"}, "spec": {"nodeName": "n1"}}
        self.api.put(PODS, body | {"status": {"conditions": OTHERS if conditions is None else conditions}})
        self.now = NOW
        self.conditions = CheckpointableConditions(self.api, lambda _: self.seen, lambda: self.now)
        self.seen: Pod | None = self.pod()

    def pod(self) -> Pod:
        return msgspec.convert(self.api.stored(PODS, "md-0", "bio"), Pod)

    async def publish(self, inspection: Inspection, *, is_requested: bool = False, is_seen: bool = True) -> Object:
        """Publish, and return our condition."""
        workload = WorkloadRef("u", "bio", "md-0", "n1")
        await self.conditions.publish(Look(workload, is_last=True, is_requested=is_requested), inspection)
        if is_seen:
            self.seen = self.pod()
        conditions = self.api.stored(PODS, "md-0", "bio")["status"]["conditions"]
        assert [one for one in conditions if one["type"] != names.CHECKPOINTABLE] in (OTHERS, [])
        [ours] = [one for one in conditions if one["type"] == names.CHECKPOINTABLE]
        return cast("Object", ours)

    @property
    def writes(self) -> int:
        return len([one for one in self.api.traffic.writes if one.resource == PODS])


@pytest.mark.parametrize("conditions", [None, []])
async def test_an_obstacle_is_said_with_its_reason_and_remedy(conditions: list[Object] | None) -> None:
    assert await _Cluster(conditions).publish(RING) == {
        "type": "sched.cedana.ai/Checkpointable",
        "status": "False",
        "reason": "UsesIoUring",
        "message": "A checkpoint would fail: process 7 (node) uses io_uring: switch it off",
        "lastProbeTime": "2026-05-01T12:00:00Z",
        "lastTransitionTime": "2026-05-01T12:00:00Z",
    }


async def test_it_becomes_true_when_the_obstacle_is_gone() -> None:
    cluster = _Cluster()
    await cluster.publish(RING)
    cluster.now += timedelta(seconds=10)
    ours = await cluster.publish(Inspection())
    assert (ours["status"], ours["reason"]) == ("True", "NoObstacleFound")
    assert ours["lastTransitionTime"] == "2026-05-01T12:00:10Z"


async def test_what_is_known_is_written_once() -> None:
    cluster = _Cluster()
    await cluster.publish(RING)
    await cluster.publish(RING)
    assert cluster.writes == 1


async def test_who_asks_sees_when_it_was_looked_at() -> None:
    cluster = _Cluster()
    await cluster.publish(RING)
    cluster.now += timedelta(seconds=30)
    ours = await cluster.publish(RING, is_requested=True)
    assert (ours["lastProbeTime"], ours["lastTransitionTime"]) == ("2026-05-01T12:00:30Z", "2026-05-01T12:00:00Z")


async def test_an_unfinished_look_takes_nothing_back() -> None:
    cluster = _Cluster()
    await cluster.publish(RING)
    unfinished = Inspection(unfinished="the look does not end")
    assert (await cluster.publish(unfinished))["status"] == "False"
    ours = await cluster.publish(unfinished, is_requested=True)
    assert (ours["status"], ours["reason"]) == ("Unknown", "NotInspected")
    assert (await _Cluster().publish(unfinished))["status"] == "Unknown"


async def test_a_patch_for_other_conditions_than_there_are_changes_nothing() -> None:
    """The informer lags: another component has removed a condition."""
    cluster = _Cluster()
    await cluster.publish(RING)
    changed = [cluster.api.stored(PODS, "md-0", "bio")["status"]["conditions"][2], OTHERS[0], OTHERS[1]]
    cluster.api.merge(PODS, "md-0", "bio", {"status": {"conditions": changed}})
    with pytest.raises(ApiError):
        await cluster.publish(Inspection(), is_seen=False)
    assert cluster.api.stored(PODS, "md-0", "bio")["status"]["conditions"] == changed


async def test_another_pod_of_the_name_is_left_alone() -> None:
    cluster = _Cluster()
    assert cluster.seen is not None
    cluster.seen = replace(cluster.seen, metadata=replace(cluster.seen.metadata, uid="earlier"))
    with pytest.raises(ApiError):
        await cluster.publish(RING)


async def test_pods_that_are_gone_need_no_condition() -> None:
    cluster = _Cluster()
    cluster.api.remove(PODS, "md-0", "bio")
    await cluster.conditions.publish(
        Look(WorkloadRef("u", "bio", "md-0", "n1"), is_last=True, is_requested=False), RING
    )
    cluster.seen = None
    await cluster.conditions.publish(
        Look(WorkloadRef("u", "bio", "md-0", "n1"), is_last=True, is_requested=False), RING
    )


class _Looks:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_started(self, workload: WorkloadRef, ran_seconds: float) -> None:
        self.calls.append(("started", workload.uid, ran_seconds))

    def request(self, workload: WorkloadRef) -> None:
        self.calls.append(("requested", workload.uid))

    def drop(self, uid: str) -> None:
        self.calls.append(("dropped", uid))


def _running(*ago: float | None, request: str | None = None, phase: str = "Running", namespace: str = "bio") -> Pod:
    """With a container for each, which started so many seconds ago; None: not yet."""
    statuses = tuple(ContainerStatus(f"c{number}", _state(seconds)) for number, seconds in enumerate(ago))
    annotations = {names.PREFLIGHT_REQUESTED: request} if request is not None else {}
    spec = PodSpec(node_name="n1", containers=tuple(Container(one.name) for one in statuses))
    return Pod(Metadata("md-0", namespace, "u1", annotations=annotations), spec, PodStatus(phase, "", (), statuses))


def _state(ago: float | None) -> dict[str, dict[str, Any]]:
    if ago is None:
        return {"waiting": {}}
    return {"running": {"startedAt": (NOW - timedelta(seconds=ago)).isoformat()}}


@pytest.fixture
def looks() -> _Looks:
    return _Looks()


@pytest.fixture
def pods(looks: _Looks) -> PodInspections:
    inspections = cast("WorkloadInspections", looks)
    return PodInspections(inspections, lambda pod: pod.metadata.namespace != "kube-system", NOW.timestamp)


def test_a_pod_is_looked_at_when_all_its_containers_run(pods: PodInspections, looks: _Looks) -> None:
    pods.on_pod_change(None, _running(None, None))
    pods.on_pod_change(_running(None, None), _running(0, None))
    assert looks.calls == []
    pods.on_pod_change(_running(0, None), _running(5, 2))
    assert looks.calls == [("started", "u1", 2.0)]
    pods.on_pod_change(_running(5, 2), _running(5, 2))
    assert looks.calls == [("started", "u1", 2.0)]


def test_containers_that_start_again_are_looked_at_again(pods: PodInspections, looks: _Looks) -> None:
    pods.on_pod_change(_running(100, 100), _running(100, 3))
    assert looks.calls == [("started", "u1", 3.0)]


def test_each_new_value_of_the_annotation_asks_once(pods: PodInspections, looks: _Looks) -> None:
    for before, now, requests in ((None, "1", 1), ("1", "1", 0), ("1", "2", 1), ("2", None, 0), ("2", "", 0)):
        looks.calls.clear()
        pods.on_pod_change(_running(9, request=before), _running(9, request=now))
        assert looks.calls == [("requested", "u1")] * requests


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_end_are_dropped(pods: PodInspections, looks: _Looks, phase: str) -> None:
    pods.on_pod_change(_running(9), _running(9, phase=phase))
    deleted = _running(9)
    pods.on_pod_change(deleted, replace(deleted, metadata=replace(deleted.metadata, deletion_timestamp="2026")))
    pods.on_pod_change(_running(9), None)
    assert looks.calls == [("dropped", "u1")] * 3


def test_excluded_namespaces_are_not_looked_at(pods: PodInspections, looks: _Looks) -> None:
    pods.on_pod_change(None, _running(0, namespace="kube-system"))
    assert looks.calls == [("dropped", "u1")]
