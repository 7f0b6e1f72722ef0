"""Starts and ends of protected pods, whichever scheduler is theirs."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Ended, Report, Starting
from cedana_sched.cluster.coordinator import pod_reports
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing, Predecessor
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.kube.builtin_kinds import Condition, ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.cluster.coordinator.filled_mirrors import SavedSnapshots, filled, known_checkpoints, shown_restore

NOTHING_SAVED = SavedSnapshots()


class _Policies:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy(deadline_seconds=7 if name == "hasty" else 600)

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)


def _pod(name: str, node: str = "", phase: str = "Pending", **annotations: str) -> Pod:
    known = {names.ID: "md", names.INDEX: "3", names.RESTORE_IDENTITY: "md/3@12"}
    metadata = Metadata(
        name=name, namespace="bio", uid=f"uid-of-{name}", annotations=known | annotations, resource_version=name
    )
    return Pod(metadata, PodSpec(node_name=node), PodStatus(phase=phase))


class _Cluster:
    """A mirror that the test fills, and what was reported of it."""

    def __init__(
        self,
        *pods: Pod,
        restores: tuple[OrderedObject, ...] = (),
        saved: SavedSnapshots = NOTHING_SAVED,
        fencing: PodFencing | None = None,
    ) -> None:
        self.informer: Informer[Pod] = filled(*pods)
        self.informer.synced.set()
        self.restores: Informer[OrderedObject] = filled(*restores)
        self.restores.synced.set()
        nothing = cast("Any", None)
        access = ClusterAccess(nothing, nothing, self.informer, _Policies(), saved, "cedana-system", nothing)
        self._reports = PodReports(
            access, PodNodeDependencies(), IncarnationNumbers(self.restores), known_checkpoints(), fencing
        ).reports()

    async def next(self) -> Report:
        async with asyncio.timeout(60):
            return await anext(self._reports)

    async def silence(self) -> bool:
        """Whether nothing more is reported."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(self._reports)
            return False
        return True


async def test_pod_that_returns_is_told_when_it_has_its_node() -> None:
    waiting = _pod("a")
    cluster = _Cluster(waiting)
    asyncio.get_running_loop().call_soon(
        cluster.informer._put, replace(waiting, spec=PodSpec(node_name="node-1"), metadata=_renewed(waiting))
    )
    starting = await cluster.next()
    assert starting == Starting(
        WorkloadRef("uid-of-a", "bio", "a", "node-1"), Identity("bio", "md", 3), CheckpointPolicy(), None
    )


async def test_who_takes_a_preempted_ones_place_is_told_of_as_such() -> None:
    pod = _pod("a", "node-1")
    pod.metadata.annotations[names.EXPECT_SNAPSHOT] = "true"
    starting = await _Cluster(pod).next()
    assert isinstance(starting, Starting)
    assert starting.continues


async def test_newest_snapshot_that_nobody_has_deleted_comes_along() -> None:
    """The pod's annotation says generation 12."""
    mine, other = Identity("bio", "md", 3), Identity("bio", "md", 4)
    saved = SavedSnapshots(SnapshotRef(mine, 10), SnapshotRef(mine, 11), SnapshotRef(other, 12))
    starting = await _Cluster(_pod("a", "node-1"), saved=saved).next()
    assert isinstance(starting, Starting)
    assert starting.newest_snapshot == SnapshotRef(mine, 11)


class _Fencing:
    """A predecessor that may run for as long as there is a reason left."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        """When each pod was looked at, by uid."""

    def predecessor_of(self, pod: Pod) -> Predecessor:
        self.times[pod.metadata.uid].append(asyncio.get_running_loop().time())
        why = self._reasons.pop(0) if self._reasons else None
        return Predecessor(why, None if self._reasons else "node n1 was lost with it")


async def test_it_is_reported_again_until_its_predecessor_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_reports, "LOOK_AGAIN_SECONDS", 0.01)
    fencing = cast("PodFencing", _Fencing("it is being deleted", "it may still run"))
    cluster = _Cluster(_pod("a", "node-1"), fencing=fencing)
    reports = [await cluster.next() for _ in range(3)]
    assert [(one.predecessor, one.loss) for one in reports if isinstance(one, Starting)] == [
        ("it is being deleted", None),
        ("it may still run", "node n1 was lost with it"),
        (None, "node n1 was lost with it"),
    ]
    assert await cluster.silence()


async def test_pods_that_succeed_each_other_under_one_name_are_reported_again_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant creates and deletes them as fast as it likes."""
    monkeypatch.setattr(pod_reports, "LOOK_AGAIN_SECONDS", 0.02)
    fencing = _Fencing(*["it may still run"] * 1000)
    pods = [_pod("a", "node-1")]
    pods += [replace(pods[0], metadata=replace(pods[0].metadata, uid=f"uid-{number}")) for number in range(40)]
    cluster = _Cluster(pods[0], fencing=cast("PodFencing", fencing))
    await cluster.next()
    for before, now in itertools.pairwise(pods):
        cluster.informer._drop(before)
        cluster.informer._put(now)
    while len(times := fencing.times["uid-39"]) < 4:
        await cluster.next()
    assert all(later - earlier > 0.01 for earlier, later in itertools.pairwise(times)), times


def _renewed(pod: Pod) -> Metadata:
    return replace(pod.metadata, resource_version="2")


async def test_first_start_is_nobodys_business_and_ends_are_told() -> None:
    plain = _pod("plain", "node-1", "Running")
    del plain.metadata.annotations[names.RESTORE_IDENTITY]
    cluster = _Cluster(plain, _pod("failed", "node-1", "Failed"))
    assert await cluster.next() == Ended("uid-of-failed", "the pod has failed", failed=True)
    assert await cluster.silence()


async def test_policy_and_the_snapshot_that_was_asked_for_come_along() -> None:
    cluster = _Cluster(_pod("a", "node-1", **{names.POLICY: "hasty", names.RESTORE_FROM: "md/3@7"}))
    starting = await cluster.next()
    assert isinstance(starting, Starting)
    assert starting.policy.deadline_seconds == 7
    assert starting.requested_snapshot == SnapshotRef(Identity("bio", "md", 3), 7)


async def test_who_asks_for_what_can_be_no_snapshot_is_told_as_refused() -> None:
    """Unless it is told anything, its pod waits for ever."""
    starting = await _Cluster(_pod("a", "node-1", **{names.RESTORE_FROM: "the one before"})).next()
    assert isinstance(starting, Starting)
    assert starting.requested_snapshot is None
    assert starting.refused == (
        f"metadata.annotations[{names.RESTORE_FROM}]: 'the one before' names no snapshot"
        " (write id/index@generation, as 'kubectl get checkpoints' shows it)"
    )


async def test_who_asks_for_nothing_in_an_empty_annotation_gets_the_newest() -> None:
    starting = await _Cluster(_pod("a", "node-1", **{names.RESTORE_FROM: ""})).next()
    assert isinstance(starting, Starting)
    assert (starting.requested_snapshot, starting.refused) == (None, None)


async def test_pod_whose_marks_were_changed_by_hand_is_passed_over() -> None:
    cluster = _Cluster(_pod("a", "node-1", **{names.INDEX: "three"}), _pod("b", "node-1"))
    starting = await cluster.next()
    assert isinstance(starting, Starting)
    assert starting.workload.name == "b"


def _failed(*, reason: str = "", deleted: bool = False, disrupted: bool = False, phase: str = "Failed") -> Pod:
    pod = _pod("a", node="n1", phase=phase)
    end = {"exitCode": 139, "startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:02Z"}
    conditions = (Condition("DisruptionTarget", "True", "PreemptionByScheduler"),) if disrupted else ()
    status = PodStatus(phase, reason, conditions, (ContainerStatus("main", {"terminated": end}),))
    deleted_at = "2026-01-01T10:00:01Z" if deleted else None
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=deleted_at), status=status)


async def test_a_program_that_failed_is_told_with_the_time_that_it_ran() -> None:
    report = await _Cluster(_failed()).next()
    assert report == Ended("uid-of-a", "the pod has failed", failed=True, ran_seconds=2.0)


@pytest.mark.parametrize(
    "pod",
    [
        _failed(reason="Evicted"),
        _failed(deleted=True),
        _failed(disrupted=True),
        _failed(phase="Succeeded"),
    ],
    ids=["evicted by its kubelet", "deleted", "preempted", "succeeded"],
)
async def test_a_pod_that_others_ended_has_not_failed_by_itself(pod: Pod) -> None:
    report = await _Cluster(pod).next()
    assert isinstance(report, Ended)
    assert not report.failed


async def test_a_pod_that_never_ran_has_no_time() -> None:
    waiting = ContainerStatus("main", {"terminated": {"exitCode": 128, "startedAt": None, "finishedAt": None}})
    pod = replace(_pod("a", node="n1"), status=PodStatus("Failed", container_statuses=(waiting,)))
    assert await _Cluster(pod).next() == Ended("uid-of-a", "the pod has failed", failed=True)


NEVER_STARTED = {
    "terminated": {
        "exitCode": 128,
        "reason": "StartError",
        "message": "failed to create containerd task: context canceled: unknown",
        "startedAt": "1970-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T10:00:02Z",
    }
}
WAITING = {"waiting": {"reason": "PodInitializing"}}


@pytest.mark.parametrize("state", [NEVER_STARTED, WAITING], ids=["itself", "after its init container"])
async def test_a_pod_whose_containers_were_never_started_has_no_program_that_failed(state: Any) -> None:
    """Its kubelet ended while it started them, for one: that proves nothing of the snapshot that it was to continue."""
    pod = replace(
        _pod("a", node="n1"), status=PodStatus("Failed", container_statuses=(ContainerStatus("main", state),))
    )
    assert await _Cluster(pod).next() == Ended("uid-of-a", "the pod has failed")


@pytest.mark.parametrize("state", [NEVER_STARTED, WAITING], ids=["never started", "waiting"])
async def test_a_program_that_failed_beside_one_that_never_ran_has_failed(state: Any) -> None:
    failed = _failed()
    statuses = (*failed.status.container_statuses, ContainerStatus("beside", state))
    pod = replace(failed, status=replace(failed.status, container_statuses=statuses))
    assert await _Cluster(pod).next() == Ended("uid-of-a", "the pod has failed", failed=True, ran_seconds=2.0)


async def test_a_program_that_was_started_again_has_run() -> None:
    again = ContainerStatus("main", NEVER_STARTED, restart_count=1)
    pod = replace(_pod("a", node="n1"), status=PodStatus("Failed", container_statuses=(again,)))
    report = await _Cluster(pod).next()
    assert isinstance(report, Ended)
    assert report.failed


RUNNING = _pod("a", "node-1", "Running")


def _restore(beginning: int = 0, replaced_by: str | None = None) -> OrderedObject:
    return shown_restore("a", "uid-of-a", beginning, replaced_by)


async def test_pod_of_which_its_node_says_that_it_begins_again_is_told() -> None:
    """Whatever its kubelet says: of a Job's pod it says nothing."""
    cluster = _Cluster(RUNNING, restores=(_restore(),))
    assert isinstance(first := await cluster.next(), Starting)
    assert first.incarnation == 0
    asyncio.get_running_loop().call_soon(cluster.restores._put, _restore(replaced_by="c2"))
    assert await cluster.next() == replace(first, incarnation=1)
    asyncio.get_running_loop().call_soon(cluster.restores._put, _restore(1))
    asyncio.get_running_loop().call_soon(cluster.restores._put, _restore(replaced_by="c2"))
    assert await cluster.silence()


@pytest.mark.parametrize(
    ("restores", "beginning"),
    [
        ((_restore(),), 0),
        ((_restore(replaced_by="c2"),), 1),
        ((_restore(replaced_by="c2"), _restore(1)), 1),
        ((_restore(replaced_by="c2"), _restore(1, "c3")), 2),
        ((_restore(1, "c3"),), 2),
    ],
    ids=["not yet", "begins again", "is recorded", "begins again twice", "the first is forgotten"],
)
async def test_coordinator_that_was_away_meanwhile_is_told_of_the_latest_beginning(
    restores: tuple[OrderedObject, ...], beginning: int
) -> None:
    other = shown_restore("b", "uid-of-b", 8)
    assert isinstance(first := await _Cluster(RUNNING, restores=(*restores, other)).next(), Starting)
    assert first.incarnation == beginning


async def test_beginning_of_a_pod_that_is_not_shown_waits_for_it() -> None:
    cluster = _Cluster(restores=(_restore(replaced_by="c2"),))
    asyncio.get_running_loop().call_soon(cluster.informer._put, RUNNING)
    assert isinstance(first := await cluster.next(), Starting)
    assert first.incarnation == 1
    gone = shown_restore("gone", "uid-of-gone", 0, "c2")
    asyncio.get_running_loop().call_soon(cluster.restores._put, gone)
    assert await cluster.silence()
