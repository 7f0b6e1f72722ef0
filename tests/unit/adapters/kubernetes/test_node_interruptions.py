"""Notices that a node ends: its pods are saved as far as the time allows, evicted, and the node is cordoned."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.adapter.conformance.cluster_stage import NODE
from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.objects.node_interruption import (
    InterruptionKind,
    InterruptionSource,
    NodeInterruption,
    left_out_mark,
    read_interruption,
    serialized_interruption,
)
from cedana_sched.model.preemption import Verdict
from cedana_sched_kubernetes import node_interruptions
from cedana_sched_kubernetes.deletions import DELETED
from cedana_sched_kubernetes.node_interruptions import MARGIN_SECONDS, WITHDRAWN
from tests.unit.adapters.kubernetes.kubernetes_stage import HOOKED, KubernetesStage, owner

SPOT_TAINT = {"key": "aws-node-termination-handler/spot-itn", "value": "event-1", "effect": "NoSchedule"}
GIB = 1 << 30


def annotated(seconds: float | None, kind: InterruptionKind = InterruptionKind.TERMINATION) -> dict[str, str]:
    now = datetime.now(tz=UTC)
    ends_at = None if seconds is None else now + timedelta(seconds=seconds)
    notice = NodeInterruption.from_times(InterruptionSource.AWS, kind, ends_at, now)
    return {names.NODE_INTERRUPTION: serialized_interruption(notice)}


class SpotStage(KubernetesStage):
    """Pods of one Job on a node that its provider may take away."""

    def __init__(self) -> None:
        super().__init__()
        self.api.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid"}, "spec": {}})
        self.recorded = itertools.count()

    def announce(self, seconds: float | None = 120, kind: InterruptionKind = InterruptionKind.TERMINATION) -> None:
        self.change_node({"metadata": {"annotations": annotated(seconds, kind)}})

    def withdraw_notice(self) -> None:
        self.change_node({"metadata": {"annotations": {names.NODE_INTERRUPTION: None}}, "spec": {"taints": None}})

    def change_node(self, patch: Object) -> None:
        self.api.merge(NODES, NODE, None, patch)

    @property
    def node(self) -> Object:
        node: Object = self.api.stored(NODES, NODE)
        return node

    @property
    def is_cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    def put_sized(self, name: str, gib: float, *, minutes: float = 60, cores: int = 1) -> RunningWorkload:
        """A pod of this memory that has run for this long."""
        pod = self.put_pod(name, owner=owner())
        started_at = datetime.now(tz=UTC) - timedelta(minutes=minutes)
        resources = {"requests": {"cpu": str(cores)}, "limits": {"memory": f"{math.ceil(gib * GIB)}"}}
        spec = {"containers": [{"name": "main", "resources": resources}]}
        self.change_pod(pod, {"spec": spec, "status": {"startTime": f"{started_at:%Y-%m-%dT%H:%M:%SZ}"}})
        return pod

    def put_checkpoint(
        self,
        pod: RunningWorkload,
        *,
        used: int,
        moved: int,
        seconds: float,
        minutes_ago: float,
        namespace: str = "bio",
    ) -> None:
        """A snapshot of the pod, after which it ran on; in another namespace, of another pod."""
        number = next(self.recorded)
        committed_at = datetime.now(tz=UTC) - timedelta(minutes=minutes_ago)
        identity = {"id": pod.workload.name, "index": 0, "container": "main"}
        self.api.put(
            CHECKPOINTS,
            {
                "metadata": {"name": f"c{number}", "namespace": namespace, "labels": {names.NODE: NODE}},
                "spec": {
                    "identity": identity,
                    "podRef": {
                        "name": pod.workload.name,
                        "uid": pod.uid if namespace == "bio" else f"{namespace}-{number}",
                        "nodeName": NODE,
                    },
                },
                "status": {
                    "phase": "Ready",
                    "step": "Ready",
                    "snapshot": {**identity, "generation": number + 1},
                    "freezeTime": (committed_at - timedelta(seconds=seconds)).isoformat(),
                    "commitTime": committed_at.isoformat(),
                    "transfer": {"readBytes": used, "zeroBytes": 0, "reusedBytes": used - moved, "storedBytes": 1},
                },
            },
        )

    @asynccontextmanager
    async def coordinated(self) -> AsyncIterator[Coordinator]:
        async with self.adapter() as adapter:
            coordinator = Coordinator(self, adapter)
            async with coordinator.reading_reports():
                yield coordinator

    def evicted(self) -> list[str]:
        return [write.name for write in self.api.traffic.writes if write.verb == "evict"]


def signalled(coordinator: Coordinator) -> list[str]:
    """The names of the reported pods, in order."""
    return [report.signal.victims[0].workload.name for report in coordinator.received if hasattr(report, "signal")]


async def test_pods_of_a_node_that_ends_are_saved_and_evicted() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        first, second = await stage.start(members=2)
        stage.announce(120)
        signals = [await coordinator.wait_for_signal(pod) for pod in (first, second)]
        for signal in signals:
            assert (signal.reason, signal.release_group, len(signal.victims)) == ("NodeTermination", None, 1)
            assert signal.not_after is not None
            left = signal.not_after - datetime.now(tz=UTC).timestamp()
            assert 100 < left <= 120 - MARGIN_SECONDS
        await stage.api.until(lambda: stage.is_cordoned)
        assert stage.evicted() == []
        await coordinator.release(signals[0], Verdict.COMMITTED)
        assert stage.evicted() == [first.workload.name]
        await coordinator.release(signals[1], Verdict.EVICT)
        assert stage.evicted() == [first.workload.name, second.workload.name]
    assert coordinator.cancellations() == set()


async def test_other_nodes_and_pods_without_protection_are_left_alone() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        await stage.start(protected=False)
        (elsewhere,) = await stage.start()
        stage.change_pod(elsewhere, {"spec": {"nodeName": "node-2"}})
        stage.announce()
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
    assert coordinator.received == []


async def test_a_notice_that_is_withdrawn() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        signal = await coordinator.wait_for_signal(pod)
        await stage.api.until(lambda: stage.is_cordoned)
        stage.withdraw_notice()
        assert (await coordinator.wait_for_cancellation(signal)).why == WITHDRAWN
        await stage.api.until(lambda: not stage.is_cordoned)
        assert names.CORDONED not in stage.node["metadata"]["annotations"]


async def test_a_release_after_a_notice_was_withdrawn_unseen_spares_the_pod() -> None:
    stage = SpotStage()
    (pod,) = await stage.start()
    stage.announce()
    async with stage.coordinated() as coordinator:
        signal = await coordinator.wait_for_signal(pod)
        await stage.api.until(lambda: stage.is_cordoned)
    stage.withdraw_notice()
    async with stage.coordinated() as coordinator:
        await stage.wait_until_reported()
        await coordinator.release(signal, Verdict.COMMITTED)
        assert await coordinator.wait_for_cancellation(signal) == PreemptionCancelled(signal.uid, WITHDRAWN)
        await stage.api.until(lambda: not stage.is_cordoned)
    assert stage.evicted() == []


async def test_after_a_restart_the_same_signals_are_reported_and_released() -> None:
    stage = SpotStage()
    (pod,) = await stage.start()
    stage.announce()
    uids = set()
    for _ in range(2):
        async with stage.coordinated() as coordinator:
            signal = await coordinator.wait_for_signal(pod)
            uids.add(signal.uid)
    assert len(uids) == 1
    async with stage.coordinated() as coordinator:
        await coordinator.release(signal, Verdict.COMMITTED)
    assert stage.evicted() == [pod.workload.name]


async def test_a_cordon_of_an_admin_stays() -> None:
    stage = SpotStage()
    stage.change_node({"spec": {"unschedulable": True}})
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        await coordinator.wait_for_signal(pod)
        stage.withdraw_notice()
        await stage.wait_until_reported()
    assert stage.is_cordoned
    assert names.CORDONED not in stage.node["metadata"].get("annotations", {})


async def test_a_node_that_an_admin_uncordons_stays_so() -> None:
    stage = SpotStage()
    async with stage.coordinated():
        stage.announce()
        await stage.api.until(lambda: stage.is_cordoned)
        stage.change_node({"spec": {"unschedulable": None}})
        await stage.wait_until_reported()
        assert not stage.is_cordoned
        stage.withdraw_notice()
        await stage.api.until(lambda: names.CORDONED not in stage.node["metadata"]["annotations"])


@pytest.mark.parametrize(("last", "stays"), [("kubectl-cordon", True), ("cedana-sched", False)])
async def test_a_cordon_of_an_admin_that_came_later_stays(last: str, stays: bool) -> None:
    """They uncordoned the node, and cordoned it again, seen or not."""
    stage = SpotStage()
    async with stage.coordinated():
        stage.announce()
        await stage.api.until(lambda: stage.is_cordoned)
        written: Object = {"f:spec": {"f:unschedulable": {}}}
        managed = [
            {"manager": "kubelet", "fieldsV1": {"f:status": {}, "f:spec": {"f:providerID": {}}}},
            {"manager": last, "operation": "Update", "fieldsV1": written},
        ]
        stage.change_node({"metadata": {"managedFields": managed}})
        stage.withdraw_notice()
        await stage.api.until(lambda: names.CORDONED not in stage.node["metadata"]["annotations"])
        assert stage.is_cordoned is stays


async def test_a_risk_is_published_and_moves_nothing() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        await stage.start()
        stage.announce(None, InterruptionKind.RISK)
        await stage.wait_until_reported()
        assert coordinator.received == []
        assert not stage.is_cordoned
        stage.announce(120)
        await stage.api.until(lambda: stage.is_cordoned)
        stage.announce(None, InterruptionKind.RISK)  # the interruption is withdrawn, the risk is not
        await stage.api.until(lambda: not stage.is_cordoned)


@pytest.mark.parametrize(
    ("taint", "is_notice"),
    [
        (SPOT_TAINT, True),
        ({"key": "aws-node-termination-handler/asg-lifecycle-termination", "effect": "NoSchedule"}, True),
        ({"key": "aws-node-termination-handler/scheduled-maintenance", "value": "e", "effect": "NoSchedule"}, True),
        ({"key": "aws-node-termination-handler/rebalance-recommendation", "effect": "NoSchedule"}, False),
        ({"key": "DeletionCandidateOfClusterAutoscaler", "value": "17", "effect": "PreferNoSchedule"}, False),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "17", "effect": "NoSchedule"}, False),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, False),
    ],
)
async def test_taints(taint: dict[str, str], is_notice: bool) -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.change_node({"spec": {"taints": [taint]}})
        if is_notice:
            assert (await coordinator.wait_for_signal(pod)).not_after is None
        else:
            await stage.wait_until_reported()
            assert coordinator.received == []


async def test_of_the_agents_notice_and_a_taint_the_one_with_a_time_counts() -> None:
    stage = SpotStage()
    stage.change_node({"spec": {"taints": [SPOT_TAINT]}})
    stage.announce(120)
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        assert (await coordinator.wait_for_signal(pod)).not_after is not None


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[ObjectEvent]:
    recorded: list[ObjectEvent] = []
    monkeypatch.setattr(EventRecorder, "record_event", lambda _, event: recorded.append(event))
    return recorded


async def test_what_does_not_fit_is_left_out_and_explained(events: list[ObjectEvent]) -> None:
    stage = SpotStage()
    large = stage.put_sized("large-0", 40)
    small = stage.put_sized("small-0", 0.5)
    async with stage.coordinated() as coordinator:
        stage.announce(33.9)
        await coordinator.wait_for_signal(small)
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert signalled(coordinator) == ["small-0"]
    (event,) = events
    assert (event.involved["uid"], event.reason, event.warning) == (large.uid, "NotSavedInTime", True)
    explanation = re.fullmatch(
        rf"Node {NODE} ends at \d\d:\d\d:\d\d UTC, and the pod is not saved: "
        r"it needs 431 s at 100 MB/s, (\d+) s are left",
        event.message,
    )
    assert explanation is not None, event.message
    assert 10 < int(explanation[1]) <= 33.9 - MARGIN_SECONDS


async def test_a_pod_that_stays_left_out_is_explained_once(events: list[ObjectEvent]) -> None:
    stage = SpotStage()
    stage.put_sized("large-0", 40)
    small = stage.put_sized("small-0", 0.5)
    async with stage.coordinated() as coordinator:
        stage.announce(30)
        await coordinator.release(await coordinator.wait_for_signal(small), Verdict.COMMITTED)
        await stage.wait_until_reported()
    assert [event.involved["name"] for event in events] == ["large-0"]


async def test_an_unreadable_notice_is_an_event_of_the_node_once(events: list[ObjectEvent]) -> None:
    """An admin may have written it by hand: without the Event nothing shows that no pod is saved."""
    stage = SpotStage()
    stage.change_node({"metadata": {"annotations": {names.NODE_INTERRUPTION: '{"source":"aws"}'}}})
    async with stage.coordinated():
        await stage.wait_until_reported()
        stage.change_node({"metadata": {"labels": {"a": "b"}}})
        await stage.wait_until_reported()
        assert not stage.is_cordoned
    (event,) = events
    assert (event.involved["kind"], event.involved["name"]) == ("Node", NODE)
    assert (event.reason, event.warning) == ("Unreadable", True)
    assert event.message == (
        'cedana-sched leaves it alone: metadata.annotations[sched.cedana.ai/interruption]: \'{"source":"aws"}\' '
        "is no notice of interruption: Object missing required field `kind` (write source, kind, notBefore and "
        "observed, with times such as 2026-11-28T10:02:00.000+00:00, or remove it)"
    )


async def test_a_risk_is_an_event_of_the_node(events: list[ObjectEvent]) -> None:
    stage = SpotStage()
    async with stage.coordinated():
        stage.announce(None, InterruptionKind.RISK)
        await stage.wait_until_reported()
    assert [(event.reason, event.involved["kind"], event.involved["name"]) for event in events] == [
        ("InterruptionLikely", "Node", NODE)
    ]


@pytest.mark.parametrize(("increments", "saved"), [(True, 6), (False, 1)])
async def test_increments_fit_where_whole_snapshots_do_not(increments: bool, saved: int) -> None:
    """A notice of 30 s, six pods of 3 GiB at 200 MB/s."""
    stage = SpotStage()
    pods = [stage.put_sized(f"md{number}-0", 3) for number in range(6)]
    for number, pod in enumerate(pods):
        took = 1 + 3 * GIB / 200e6
        stage.put_checkpoint(pod, used=3 * GIB, moved=3 * GIB, seconds=took, minutes_ago=20 + number)
        if increments:
            stage.put_checkpoint(pod, used=3 * GIB, moved=400_000_000, seconds=3, minutes_ago=10)
    async with stage.coordinated() as coordinator:
        stage.announce(30)
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert len(signalled(coordinator)) == saved


@pytest.mark.parametrize("seconds", [0.5, 1_000], ids=["fast", "slow"])
async def test_saves_of_other_namespaces_do_not_change_what_fits(seconds: float) -> None:
    """Of six pods of 3 GiB at 200 MB/s one fits into 30 s."""
    stage = SpotStage()
    pods = [stage.put_sized(f"md{number}-0", 3) for number in range(6)]
    for number, pod in enumerate(pods):
        took = 1 + 3 * GIB / 200e6
        stage.put_checkpoint(pod, used=3 * GIB, moved=3 * GIB, seconds=took, minutes_ago=20 + number)
    for number in range(10):
        ago = 100 + 20 * number
        stage.put_checkpoint(pods[0], used=GIB, moved=GIB, seconds=seconds, minutes_ago=ago, namespace="lab")
    async with stage.coordinated() as coordinator:
        stage.announce(30)
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert len(signalled(coordinator)) == 1


@pytest.mark.parametrize(("slow_kind", "selector"), [(CHECKPOINTS, names.NODE), (PODS, "spec.nodeName")])
async def test_measurements_that_were_read_in_time_count(
    monkeypatch: pytest.MonkeyPatch, slow_kind: Resource, selector: str
) -> None:
    """Of six pods of 3 GiB, increments fit, whole snapshots do not; one of the lists does not end in time.

    Tenants may have many Checkpoints on the node, and large pods.
    """
    stage = SpotStage()
    pods = [stage.put_sized(f"md{number}-0", 3) for number in range(6)]
    for number, pod in enumerate(pods):
        stage.put_checkpoint(pod, used=3 * GIB, moved=3 * GIB, seconds=1 + 3 * GIB / 200e6, minutes_ago=20 + number)
        stage.put_checkpoint(pod, used=3 * GIB, moved=400_000_000, seconds=3, minutes_ago=10)
    list_each = stage.api.list_each

    async def slow(resource: Resource, namespace: str | None, query: Any, *arguments: Any, **named: Any) -> str:
        version = await list_each(resource, namespace, query, *arguments, **named)
        if resource is slow_kind and selector in str(query):
            await asyncio.sleep(60)
        return version

    monkeypatch.setattr(stage.api, "list_each", slow)
    monkeypatch.setattr(node_interruptions, "READ_SECONDS", 0.2)
    async with stage.coordinated() as coordinator:
        stage.announce(30)
        for pod in pods:
            await coordinator.wait_for_signal(pod)


async def test_without_measurements_most_work_is_saved_first() -> None:
    stage = SpotStage()
    stage.put_sized("young-0", 1, minutes=1)
    stage.put_sized("old-0", 1, minutes=100)
    stage.put_sized("wide-0", 1, minutes=60, cores=8)
    async with stage.coordinated() as coordinator:
        stage.announce(29)  # 11.8 s each
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert signalled(coordinator) == ["wide-0", "old-0"]


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_pods_that_were_left_out_are_planned_again_once_others_are_released(verdict: Verdict) -> None:
    stage = SpotStage()
    stage.put_sized("first-0", 1, minutes=100)
    second = stage.put_sized("second-0", 1, minutes=10)
    async with stage.coordinated() as coordinator:
        stage.announce(19)
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert signalled(coordinator) == ["first-0"]
        (signal,) = (report.signal for report in coordinator.received if hasattr(report, "signal"))
        await coordinator.release(signal, verdict)  # sooner than planned
        await coordinator.wait_for_signal(second)


@pytest.mark.parametrize("how", ["ended", "eviction refused"])
async def test_pods_that_were_left_out_do_not_wait_for_the_eviction_of_others(how: str) -> None:
    stage = SpotStage()
    first = stage.put_sized("first-0", 1, minutes=100)
    second = stage.put_sized("second-0", 1, minutes=10)
    async with stage.coordinated() as coordinator:
        stage.announce(19)
        await stage.api.until(lambda: stage.is_cordoned)
        signal = await coordinator.wait_for_signal(first)
        if how == "ended":
            await stage.finish(first)
        else:
            stage.api.refused_evictions.add(first.workload.name)
            assert not await coordinator.try_release_call(await coordinator.decide(signal, Verdict.COMMITTED))
        await coordinator.wait_for_signal(second)


async def test_a_pod_that_starts_after_the_notice_is_saved_too() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        stage.announce()
        await stage.api.until(lambda: stage.is_cordoned)
        (pod,) = await stage.start()
        await coordinator.wait_for_signal(pod)


async def test_a_notice_whose_time_is_over_saves_nothing() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        await stage.start()
        stage.announce(-60)
        await stage.api.until(lambda: stage.is_cordoned)
        await stage.wait_until_reported()
        assert coordinator.received == []


async def test_saves_are_planned_although_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = SpotStage()
    list_each = stage.api.list_each

    async def unavailable(*arguments: Any, **named: Any) -> str:
        if named.get("only_metadata") is None and "nodeName" in str(arguments):
            raise ApiUnavailableError("no answer")
        return await list_each(*arguments, **named)

    monkeypatch.setattr(stage.api, "list_each", unavailable)
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        await coordinator.wait_for_signal(pod)


async def test_a_budget_that_does_not_allow_the_eviction_delays_it() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        signal = await coordinator.wait_for_signal(pod)
        stage.api.refused_evictions.add(pod.workload.name)
        release = await coordinator.decide(signal, Verdict.COMMITTED)
        assert not await coordinator.try_release_call(release)
        assert stage.evicted() == []
        stage.api.refused_evictions.clear()
        await coordinator.deliver_release(release)
    assert stage.evicted() == [pod.workload.name]


@pytest.mark.parametrize("verdict", [Verdict.KEEP_RUNNING, Verdict.NOT_NEEDED])
async def test_pods_that_are_kept_are_not_evicted(verdict: Verdict) -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        await coordinator.release(await coordinator.wait_for_signal(pod), verdict)
    assert stage.evicted() == []


@pytest.mark.parametrize("text", ["", "{}", '{"source":"aws"}', "x" * 5_000])
async def test_an_annotation_of_another_writer_is_no_notice(text: str) -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        await stage.start()
        stage.change_node({"metadata": {"annotations": {names.NODE_INTERRUPTION: text}}})
        await stage.wait_until_reported()
        assert coordinator.received == []
        assert not stage.is_cordoned


async def test_pod_of_a_node_that_shuts_down_is_saved_and_left_to_the_kubelet() -> None:
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.change_pod(pod, {"status": {"conditions": []}})
        stage.announce(60, InterruptionKind.SHUTDOWN)
        signal = await coordinator.wait_for_signal(pod)
        assert signal.reason == "NodeShutdown"
        assert signal.not_after is not None
        await stage.api.until(lambda: stage.is_cordoned)
        await coordinator.release(signal, Verdict.COMMITTED)
    assert stage.evicted() == []
    assert [write.verb for write in stage.api.traffic.writes if write.resource.plural == "pods"] == []


async def test_pod_whose_end_nothing_holds_is_not_saved_while_its_node_shuts_down() -> None:
    """Its program has SIGTERM already: what it does at its end would be done twice."""
    stage = SpotStage()
    stage.put_pod("unhooked-0", owner=owner())
    async with stage.coordinated() as coordinator:
        (held,) = await stage.start()
        stage.announce(60, InterruptionKind.SHUTDOWN)
        await coordinator.wait_for_signal(held)
        await stage.wait_until_reported()
        assert signalled(coordinator) == [held.workload.name]


def mark_of(stage: SpotStage, pod: RunningWorkload) -> str | None:
    stored = stage.pod_of(pod)
    assert stored is not None
    mark: str | None = stored["metadata"]["annotations"].get(names.NOT_PREEMPTED)
    return mark


def put_hooked(stage: SpotStage, name: str) -> RunningWorkload:
    """A pod that is too large to be saved, and whose preStop hook waits."""
    pod = stage.put_sized(name, 40)
    stage.change_pod(pod, {"metadata": {"annotations": HOOKED}})
    return pod


def delete(stage: SpotStage, pod: RunningWorkload) -> None:
    """It ends in its grace period of 30 seconds."""
    ends_at = datetime.now(tz=UTC) + timedelta(seconds=30)
    deleted = {"deletionTimestamp": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": 30}
    stage.change_pod(pod, {"metadata": deleted})


@asynccontextmanager
async def left_out_of_shutdown(stage: SpotStage, *pods: RunningWorkload) -> AsyncIterator[Coordinator]:
    """The pods are marked, and their hooks do not wait."""
    async with stage.coordinated() as coordinator:
        stage.announce(30, InterruptionKind.SHUTDOWN)
        await stage.api.until(lambda: all(mark_of(stage, pod) is not None for pod in pods))
        await stage.wait_until_reported()
        assert signalled(coordinator) == []
        yield coordinator


async def test_pod_that_is_left_out_of_a_shutdown_ends_at_once(events: list[ObjectEvent]) -> None:
    """The seconds that are left are its own: its hook does not wait."""
    stage = SpotStage()
    large = put_hooked(stage, "large-0")
    async with left_out_of_shutdown(stage, large):
        notice = read_interruption(stage.node["metadata"]["annotations"])
        assert notice is not None
        assert mark_of(stage, large) == left_out_mark(notice.key)
    assert [event.reason for event in events] == ["NotSavedInTime"]


async def test_pod_that_outlives_a_shutdown_is_saved_when_it_is_deleted() -> None:
    """The machine was off before the kubelet has set the pod to Failed, or did not end."""
    stage = SpotStage()
    large = put_hooked(stage, "large-0")
    async with left_out_of_shutdown(stage, large) as coordinator:
        stage.withdraw_notice()
        await stage.api.until(lambda: not stage.is_cordoned)
        delete(stage, large)
        assert (await coordinator.wait_for_signal(large)).reason == DELETED


async def test_pod_that_is_left_out_is_not_saved_when_it_is_deleted_as_well() -> None:
    """Its program ends already."""
    stage = SpotStage()
    large = put_hooked(stage, "large-0")
    async with left_out_of_shutdown(stage, large) as coordinator:
        delete(stage, large)
        await stage.api.until(lambda: mark_of(stage, large) == "true")
        assert coordinator.received == []


async def test_pod_may_be_left_out_of_one_shutdown_after_another(events: list[ObjectEvent]) -> None:
    stage = SpotStage()
    large = put_hooked(stage, "large-0")
    async with left_out_of_shutdown(stage, large):
        first = mark_of(stage, large)
        stage.withdraw_notice()
        await stage.api.until(lambda: not stage.is_cordoned)
        stage.announce(31, InterruptionKind.SHUTDOWN)
        await stage.api.until(lambda: mark_of(stage, large) != first)
    assert [event.reason for event in events] == ["NotSavedInTime", "NotSavedInTime"]


async def test_pod_that_a_shutdown_left_out_is_saved_from_the_next_one() -> None:
    stage = SpotStage()
    large = put_hooked(stage, "large-0")
    async with left_out_of_shutdown(stage, large) as coordinator:
        stage.announce(900, InterruptionKind.SHUTDOWN)
        assert (await coordinator.wait_for_signal(large)).reason == "NodeShutdown"


async def test_pod_that_cannot_be_marked_affects_no_other(
    monkeypatch: pytest.MonkeyPatch, events: list[ObjectEvent]
) -> None:
    stage = SpotStage()
    pods = [put_hooked(stage, f"large-{number}") for number in range(4)]
    refused = {"large-0", "large-2"}
    patch = stage.api.patch

    async def refuse(resource: Any, name: str, *arguments: Any, **named: Any) -> Any:
        if name in refused:
            raise ApiUnavailableError("a webhook does not answer")
        return await patch(resource, name, *arguments, **named)

    monkeypatch.setattr(stage.api, "patch", refuse)
    async with left_out_of_shutdown(stage, pods[1], pods[3]):
        assert stage.is_cordoned
        assert [mark_of(stage, pod) for pod in pods[::2]] == [None, None]
        refused.clear()
        await stage.api.until(lambda: all(mark_of(stage, pod) is not None for pod in pods))
    assert len(events) == len(pods)


async def test_pods_of_a_node_that_cannot_be_cordoned_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = SpotStage()
    patch, is_refused = stage.api.patch, True

    async def refuse(resource: Any, *arguments: Any, **named: Any) -> Any:
        if resource == NODES and is_refused:
            raise ApiUnavailableError("a webhook does not answer")
        return await patch(resource, *arguments, **named)

    monkeypatch.setattr(stage.api, "patch", refuse)
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce()
        await coordinator.wait_for_signal(pod)
        assert not stage.is_cordoned
        is_refused = False
        await stage.api.until(lambda: stage.is_cordoned)


async def test_pod_that_is_saved_runs_on_when_the_shutdown_is_called_off() -> None:
    """It would stay frozen: the kubelet does not end it, and nothing evicts it."""
    stage = SpotStage()
    async with stage.coordinated() as coordinator:
        (pod,) = await stage.start()
        stage.announce(60, InterruptionKind.SHUTDOWN)
        signal = await coordinator.wait_for_signal(pod)
        await coordinator.release(signal, Verdict.COMMITTED)
        assert coordinator.cancellations() == set()
        stage.withdraw_notice()
        assert (await coordinator.wait_for_cancellation(signal)).why == WITHDRAWN
