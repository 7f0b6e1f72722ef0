"""Which pods are saved periodically, with whom, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.conformance.stage import yield_to_loop
from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import periodic_pod_snapshots
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.periodic_pod_snapshots import PeriodicPodSnapshots
from cedana_sched.coordinator.snapshot_schedule import DueSnapshots, RunningWorkload, SnapshotSchedule
from cedana_sched.kube.builtin_kinds import Condition, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, NAMESPACES, PODS
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched.model.objects.eviction_mark import STALE_SECONDS, refreshed_mark, serialized_mark
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import INTERVAL, AfterCommit, Signal
from cedana_sched.testing import FakeApi
from tests.unit.cluster.coordinator.filled_mirrors import SavedSnapshots, filled

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
STARTED = "2026-05-01T10:00:00Z"


class _Policies:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy(interval_seconds=None if name == "never" else 60)

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)


def pod(
    name: str,
    *,
    phase: str = "Running",
    deleted: bool = False,
    evicted: bool = False,
    also: Mapping[str, str] | None = None,
    version: str = "",
) -> Pod:
    metadata = Metadata(
        name=name,
        namespace="bio",
        uid=f"uid-of-{name}",
        resource_version=version,
        annotations={names.ID: name, names.INDEX: "0", **(also or {})},
        deletion_timestamp=STARTED if deleted else None,
    )
    conditions = (Condition("DisruptionTarget", "True", "PreemptionByScheduler"),) if evicted else ()
    return Pod(metadata, PodSpec(node_name="n1"), PodStatus(phase=phase, start_time=STARTED, conditions=conditions))


class _Gangs:
    def gang_of(self, pod: Pod) -> str | None:
        return "g" if pod.metadata.name == "member" else None


def eviction_mark(seconds_ago: float = 0.0) -> dict[str, str]:
    """What a scheduler's refused eviction leaves on a pod."""
    mark = refreshed_mark(None, "kube-scheduler", utc_datetime_of(NOW - seconds_ago))
    assert mark is not None
    return {names.EVICTION_REQUESTED: serialized_mark(mark)}


def snapshots_of(
    *pods: Pod,
    checkpoints: tuple[KnownCheckpoint, ...] = (),
    has_intervals: bool = True,
    now: Callable[[], float] = lambda: NOW,
) -> PeriodicPodSnapshots:
    informer, known = filled(*pods), filled(*checkpoints)
    informer.synced.set()
    known.synced.set()
    nothing = cast("Any", None)
    access = ClusterAccess(nothing, nothing, informer, _Policies(), SavedSnapshots(), "cedana-system", nothing)
    return PeriodicPodSnapshots(access, known, lambda: has_intervals, (_Gangs(),), now)


def candidates(snapshots: PeriodicPodSnapshots) -> list[str]:
    return [one.victim.workload.name for one in snapshots._running_with_interval()]


def committed(frozen: str, done: str, of: str = "md") -> KnownCheckpoint:
    status = {"step": "Ready", "freezeTime": frozen, "commitTime": done, "snapshot": {"id": of, "generation": 3}}
    spec = {"identity": {"id": of}, "podRef": {"nodeName": "n1", "uid": f"uid-of-{of}"}}
    metadata = {"name": frozen, "namespace": "bio", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def test_a_pod_that_runs_is_saved() -> None:
    assert candidates(snapshots_of(pod("md"))) == ["md"]


@pytest.mark.parametrize(
    "one",
    [
        pod("md", phase="Pending"),
        pod("md", phase="Succeeded"),
        pod("md", deleted=True),
        pod("md", evicted=True),
        pod("md", also=eviction_mark()),
        pod("md", also={names.NOT_PROTECTED: "another pod has its id"}),
        pod("md", also={names.INDEX: "no number"}),
        pod("md", also={names.POLICY: "never"}),
    ],
    ids=["pending", "ended", "deleted", "evicted", "to be evicted", "refused", "forged", "without interval"],
)
def test_another_pod_is_not(one: Pod) -> None:
    assert candidates(snapshots_of(one)) == []


def test_pod_whose_eviction_no_coordinator_has_seen_is_saved_once_its_mark_is_stale() -> None:
    """No component removes such a mark, and the pod runs on with it until its end."""
    assert candidates(snapshots_of(pod("md", also=eviction_mark(STALE_SECONDS - 0.1)))) == []
    assert candidates(snapshots_of(pod("md", also=eviction_mark(STALE_SECONDS + 0.1)))) == ["md"]


async def test_schedule_looks_again_once_a_mark_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_pod_snapshots, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(periodic_pod_snapshots, "STALE_MARGIN_SECONDS", 0.01)
    began = asyncio.get_running_loop().time()
    last = committed("2026-05-01T11:59:00.050Z", "2026-05-01T11:59:01Z")
    snapshots = snapshots_of(
        pod("md"), checkpoints=(last,), now=lambda: NOW + asyncio.get_running_loop().time() - began
    )
    marked = pod("md", also=eviction_mark(STALE_SECONDS - 0.2), version="2")
    snapshots._cluster.pods._put(marked)
    signal = await _first(snapshots.reports())
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert [one.workload.name for one in signal.victims] == ["md"]


def test_without_any_interval_no_pod_is_looked_at() -> None:
    assert candidates(snapshots_of(pod("md"), has_intervals=False)) == []


def test_the_last_snapshot_of_the_pod_counts_with_its_duration() -> None:
    earlier = committed("2026-05-01T11:00:00Z", "2026-05-01T11:00:09Z")
    last = committed("2026-05-01T11:59:00Z", "2026-05-01T11:59:02Z")
    other = committed("2026-05-01T11:59:30Z", "2026-05-01T11:59:31Z", of="other")
    (one,) = snapshots_of(pod("md"), checkpoints=(earlier, last, other))._running_with_interval()
    assert (one.saved_at, one.frozen_seconds) == (NOW - 60, 2)


def test_members_of_a_gang_have_it_in_their_namespace() -> None:
    (one,) = snapshots_of(pod("member"))._running_with_interval()
    assert one.victim.gang == "bio/g"


async def _first(reports: Any) -> Signal:
    async with asyncio.timeout(60):
        report: Report = await anext(reports)
    assert isinstance(report, Preempted)
    return report.signal


async def test_what_is_due_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_pod_snapshots, "PAUSE_SECONDS", 0.0)
    last = committed("2026-05-01T11:59:00.050Z", "2026-05-01T11:59:01Z")
    began = asyncio.get_running_loop().time()
    snapshots = snapshots_of(
        pod("md"), checkpoints=(last,), now=lambda: NOW + asyncio.get_running_loop().time() - began
    )
    signal = await _first(snapshots.reports())
    assert (signal.reason, signal.after_commit, signal.adapter) == (INTERVAL, AfterCommit.LEAVE_RUNNING, "periodic")
    assert [one.workload.name for one in signal.victims] == ["md"]


async def test_a_leading_coordinator_writes_checkpoints_of_running_pods() -> None:
    server = FakeApi()
    server.put(CHECKPOINT_POLICIES, {"metadata": {"name": "default", "uid": "p"}, "spec": {"intervalSeconds": 1}})
    metadata: dict[str, Any] = {"name": "md", "namespace": "bio", "uid": "md-uid", "labels": {names.PROTECTED: "true"}}
    annotations = {names.ID: "md", names.INDEX: "0"}
    status = {"phase": "Running", "startTime": datetime.now(tz=UTC).isoformat()}
    server.put(
        PODS, {"metadata": metadata | {"annotations": annotations}, "spec": {"nodeName": "n1"}, "status": status}
    )
    leads = LeadingCoordinator(server, CoordinatorConfiguration(namespace="cedana-system"), "me")

    async def lead() -> None:
        async with leads.run_coordinator():
            await asyncio.Event().wait()

    leading = asyncio.create_task(lead())
    try:
        async with asyncio.timeout(60):
            await server.until(lambda: bool(server.all_of(CHECKPOINTS)))
    finally:
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading
    (written,) = server.all_of(CHECKPOINTS)
    spec = written["spec"]
    assert (spec["reason"], spec["afterCommit"], spec["podRef"]["name"]) == ("Interval", "LeaveRunning", "md")


async def test_pod_is_saved_again_once_its_namespace_has_its_policy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else wakes the schedule: a pod without an interval is looked at only when something changes."""
    monkeypatch.setattr(periodic_pod_snapshots, "PAUSE_SECONDS", 0.0)
    looks: asyncio.Queue[int] = asyncio.Queue()

    class Schedule(SnapshotSchedule):
        def find_due(self, running: Iterable[RunningWorkload], now: float) -> DueSnapshots:
            found = tuple(running)
            looks.put_nowait(len(found))
            return super().find_due(found, now)

    monkeypatch.setattr(periodic_pod_snapshots, "SnapshotSchedule", Schedule)
    server = FakeApi()
    server.put(CHECKPOINT_POLICIES, {"metadata": {"name": "often", "uid": "p"}, "spec": {"intervalSeconds": 3600}})

    def choose(policy: str) -> None:
        marks = {"labels": {names.PROTECT: "true"}, "annotations": {names.POLICY: policy}}
        server.put(NAMESPACES, {"metadata": {"name": "bio", "uid": "n", **marks}})

    async def until_looked_at(pods: int) -> None:
        async with asyncio.timeout(60):
            while await looks.get() != pods:
                pass
        await yield_to_loop()
        while not looks.empty():
            assert looks.get_nowait() == pods

    choose("often")
    metadata: dict[str, Any] = {"name": "md", "namespace": "bio", "uid": "md-uid", "labels": {names.PROTECTED: "true"}}
    annotations = {names.ID: "md", names.INDEX: "0", names.POLICY: "often", names.QUEUE_POLICY: "often"}
    status = {"phase": "Running", "startTime": datetime.now(tz=UTC).isoformat()}
    server.put(
        PODS, {"metadata": metadata | {"annotations": annotations}, "spec": {"nodeName": "n1"}, "status": status}
    )
    configuration = CoordinatorConfiguration(namespace="cedana-system", adapters=("kubernetes",))
    async with LeadingCoordinator(server, configuration, "me").run_coordinator():
        await until_looked_at(1)
        for policy, pods in (("missing", 0), ("often", 1)):
            choose(policy)
            await until_looked_at(pods)


def test_a_periodic_checkpoint_explains_no_deletion() -> None:
    spec = {"uid": "c", "afterCommit": "LeaveRunning"}
    metadata = {"name": "c", "namespace": "bio", "resourceVersion": "1"}
    one = {"metadata": metadata, "spec": spec, "status": {"step": "Dumping"}}
    assert not msgspec.convert(one, OrderedObject).explains_deletion(NOW)
    assert msgspec.convert(one | {"spec": spec | {"afterCommit": "Stop"}}, OrderedObject).explains_deletion(NOW)
