"""What ended while nobody led, or out of a watch's sight, is found by comparing records with what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Ended, Report, Starting
from cedana_sched.cluster.coordinator import pod_end_confirmation, pod_fencing, seen_pod_ends
from cedana_sched.cluster.coordinator.lost_nodes import LostNodes
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.kube.builtin_kinds import (
    DISRUPTED,
    OUT_OF_SERVICE,
    Condition,
    ContainerStatus,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
)
from cedana_sched.kube.errors import error_of
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.orders import FindSnapshot, RestoreSucceeded, SnapshotFound, Staged
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.records import CheckpointStep, Record, Restore, RestoreStep
from cedana_sched.testing import FakeApi
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.filled_mirrors import SavedSnapshots, filled, known_beginnings, known_checkpoints
from tests.unit.cluster.coordinator.test_object_journal import checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import RESTORE
from tests.unit.coordinator.core.core_builders import Told, ref, workload

_ID = Identity("bio", "md", 3)


def _pod(name: str, phase: str = "Running", uid: str = "") -> Pod:
    annotations = {names.ID: "md", names.INDEX: "3", names.RESTORE_IDENTITY: "md/3"}
    labels = {names.PROTECTED: "true"}
    metadata = Metadata(name, "bio", uid or f"uid-of-{name}", "1", labels=labels, annotations=annotations)
    return Pod(metadata, PodSpec(node_name="n2"), PodStatus(phase=phase))


def _of(name: str) -> Restore:
    pod = replace(RESTORE.workload, uid=f"uid-of-{name}", name=name)
    return replace(RESTORE, uid=f"restore.uid-of-{name}", workload=pod, finished_at=None, step=RestoreStep.RUNNING)


class _Policies:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()


class _Events:
    def __init__(self) -> None:
        self.told: list[ObjectEvent] = []

    def record_event(self, event: ObjectEvent) -> None:
        self.told.append(event)


class Cluster:
    """Pods as the API server has them, and as the mirror of protected pods does."""

    def __init__(
        self,
        *shown: Pod,
        hidden: tuple[Pod, ...] = (),
        records: tuple[Record, ...] = (),
        nodes: Informer[Node] | None = None,
    ) -> None:
        self.server = FakeApi()
        for pod in (*shown, *hidden):
            self.server.put(PODS, msgspec.to_builtins(pod))
        self.informer: Informer[Pod] = filled(*shown)
        self.informer.synced.set()
        self.events = _Events()
        self.dependencies = PodNodeDependencies()
        self.dependencies.on_records_saved(records, ())
        nothing = cast("Any", None)
        events = cast("EventRecorder", self.events)
        policies, saved = _Policies(), SavedSnapshots()
        access = ClusterAccess(self.server, events, self.informer, policies, saved, "cedana-system", nothing)
        fencing = None if nodes is None else PodFencing(self.informer, nodes, known_checkpoints(), filled())
        self.pods = PodReports(access, self.dependencies, known_beginnings(), known_checkpoints(), fencing)

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[asyncio.Queue[Report]]:
        queue: asyncio.Queue[Report] = asyncio.Queue()

        async def read() -> None:
            async for report in self.pods.reports():
                queue.put_nowait(report)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.pods.run()), group.create_task(read())]
            yield queue
            for task in tasks:
                task.cancel()

    async def reports(self, count: int) -> list[Report]:
        async with self.reporting() as queue, asyncio.timeout(60):
            return [await queue.get() for _ in range(count)]


async def _silence(queue: asyncio.Queue[Report]) -> None:
    for _ in range(200):
        await asyncio.sleep(0)
    assert queue.empty(), queue.get_nowait()


async def test_successor_of_a_pod_that_ended_while_nobody_led_continues_at_once() -> None:
    told = Told()
    told.report(Starting(workload("uid-of-p1"), _ID, CheckpointPolicy()))
    uid = "restore.uid-of-p1"
    told.tell(SnapshotFound(uid, ref(5, _ID)), Staged(uid), RestoreSucceeded(uid))
    told.restart()
    cluster = Cluster(_pod("p2"), records=told.core.records())
    async with cluster.reporting() as queue:
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                for _ in range(2):
                    told.report(await queue.get())
    assert told.core.registry.restores[uid].step is RestoreStep.ENDED, "nobody has noticed its end"
    assert told.order(FindSnapshot).restore_uid == "restore.uid-of-p2"


async def test_a_pod_that_was_deleted_on_a_node_that_is_cut_off_has_not_ended_until_the_node_is_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_record = _of("a").workload.node
    nodes = filled(_node(of_record, "node.kubernetes.io/unreachable"))
    cluster = Cluster(records=(_of("a"),), nodes=nodes)
    find, looks = cluster.server.find, list[str]()

    async def counting(resource: Any, name: str, *given: Any, **named: Any) -> Any:
        looks.append(name)
        return await find(resource, name, *given, **named)

    monkeypatch.setattr(cluster.server, "find", counting)
    async with cluster.reporting() as queue:
        await _silence(queue)
        assert looks == ["a"], "a pod that is absent stays absent"
        nodes._put(_node(of_record, OUT_OF_SERVICE, version="2"))
        async with asyncio.timeout(60):
            assert await queue.get() == Ended("uid-of-a", "the pod was deleted", lost_with_node=True)
    assert looks == ["a", of_record]


async def test_a_node_that_the_cache_still_shows_as_out_of_service_ends_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_end_confirmation, "LOOK_AGAIN_SECONDS", 0.001)
    of_record = _of("a").workload.node
    nodes = filled(_node(of_record, OUT_OF_SERVICE))
    cluster = Cluster(records=(_of("a"),), nodes=nodes)
    cluster.server.put(NODES, msgspec.to_builtins(_node(of_record)))
    async with cluster.reporting() as queue:
        await _silence(queue)
        nodes._put(_node(of_record, version="2"))
        await _silence(queue)
        cluster.server.remove(NODES, of_record)
        nodes._drop(_node(of_record))
        async with asyncio.timeout(60):
            assert await queue.get() == Ended("uid-of-a", "the pod was deleted", lost_with_node=True)


async def test_a_kubelet_that_stays_ready_has_ended_a_pod_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_fencing, "KUBELET_SECONDS", 2.0)
    well = replace(_node("n2"), status=NodeStatus((Condition("Ready", "True"),)))
    shown = _pod("a")
    shown = replace(shown, spec=replace(shown.spec, termination_grace_period_seconds=0))
    record = replace(_of("a"), workload=replace(_of("a").workload, node="n2"))
    cluster = Cluster(shown, records=(record,), nodes=filled(well))
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert isinstance(await queue.get(), Starting)
        cluster.server.remove(PODS, "a", "bio")
        cluster.informer._drop(shown)
        await _silence(queue)
        assert await queue.get() == Ended("uid-of-a", "the pod was deleted")


async def test_pods_of_one_tenant_do_not_delay_the_ends_of_anothers() -> None:
    many = [_of(f"many-{number}") for number in range(40)]
    other = replace(_of("other"), workload=replace(_of("other").workload, namespace="ml"))
    ends = [one async for one in _first_ends(Cluster(records=(*many, other)), 20)]
    assert "uid-of-other" in ends


async def _first_ends(cluster: Cluster, count: int) -> AsyncIterator[str]:
    async with cluster.reporting() as queue, asyncio.timeout(60):
        for _ in range(count):
            report = await queue.get()
            assert isinstance(report, Ended)
            yield report.workload_uid


async def test_a_pod_that_kubernetes_failed_because_its_node_is_gone_is_lost_with_it() -> None:
    collected = _pod("a", "Failed")
    disrupted = Condition(DISRUPTED, "True", reason=seen_pod_ends.POD_GC)
    collected = replace(collected, status=replace(collected.status, conditions=(disrupted,)))
    [shown] = await Cluster(collected, records=(_of("a"),)).reports(1)
    [hidden] = await Cluster(hidden=(collected,), records=(_of("a"),)).reports(1)
    assert isinstance(shown, Ended)
    assert isinstance(hidden, Ended)
    assert shown.lost_with_node
    assert hidden.lost_with_node


_RUNS: dict[str, dict[str, Any]] = {"running": {}}
_IS_OVER: dict[str, dict[str, Any]] = {"terminated": {"exitCode": 137}}


@pytest.mark.parametrize(
    ("state", "deleted", "phase", "taint", "is_lost"),
    [
        pytest.param(_RUNS, True, "Failed", OUT_OF_SERVICE, True, id="collected"),
        pytest.param(_IS_OVER, True, "Failed", OUT_OF_SERVICE, False, id="ended by its kubelet"),
        pytest.param(_RUNS, True, "Succeeded", OUT_OF_SERVICE, False, id="no phase of the collector"),
        pytest.param(_RUNS, True, "Failed", "other", False, id="node in service"),
        pytest.param(_RUNS, False, "Failed", OUT_OF_SERVICE, False, id="not deleted"),
        pytest.param(None, True, "Failed", OUT_OF_SERVICE, False, id="no container has started"),
    ],
)
async def test_a_deleted_pod_is_lost_with_a_node_out_of_service_unless_its_kubelet_has_ended_it(
    state: dict[str, dict[str, Any]] | None, *, deleted: bool, phase: str, taint: str, is_lost: bool
) -> None:
    """Kubernetes' collector of pods writes no condition there."""
    one = _pod("a", phase)
    statuses = () if state is None else (ContainerStatus("main", state),)
    one = replace(one, status=replace(one.status, container_statuses=statuses))
    if deleted:
        one = replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-05-01T12:00:00Z"))
    for known in ({"shown": (one,)}, {"hidden": (one,)}):
        cluster = Cluster(
            *known.get("shown", ()),
            hidden=known.get("hidden", ()),
            records=(_of("a"),),
            nodes=filled(_node("n2", taint)),
        )
        [report] = await cluster.reports(1)
        assert isinstance(report, Ended)
        assert report.lost_with_node is is_lost, known


async def test_a_pod_that_was_lost_with_its_node_has_ended_once_though_kubernetes_deletes_it() -> None:
    """A second report, that of its deletion, does not contain the loss any more."""
    collected = _pod("a", "Failed")
    disrupted = Condition(DISRUPTED, "True", reason=seen_pod_ends.POD_GC)
    collected = replace(collected, status=replace(collected.status, conditions=(disrupted,)))
    cluster = Cluster(_pod("a"), records=(_of("a"),), nodes=filled())
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert isinstance(await queue.get(), Starting)
        cluster.informer._put(collected)
        assert (await queue.get()) == Ended("uid-of-a", "the pod has failed", lost_with_node=True)
        cluster.server.remove(PODS, "a", "bio")
        cluster.informer._drop(collected)
        await _silence(queue)


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        ((), "the pod was deleted"),
        ((_pod("a", "Failed"),), "the pod has failed"),
        ((_pod("a", uid="another"),), "the pod was deleted, and another one has its name"),
    ],
)
async def test_end_that_nobody_saw_is_told_in_the_right_words(hidden: tuple[Pod, ...], why: str) -> None:
    [report] = await Cluster(hidden=hidden, records=(_of("a"),)).reports(1)
    assert report == Ended("uid-of-a", why)


@pytest.mark.parametrize(
    ("record", "lives"),
    [
        (checkpoint(1, CheckpointStep.DUMPING), True),
        (checkpoint(1, CheckpointStep.READY), False),
        (replace(checkpoint(1, CheckpointStep.READY), kill_pending=True), True),
        (replace(checkpoint(1, CheckpointStep.FAILED), unconfirmed=True), True),
        (_of("a"), True),
        (replace(_of("a"), step=RestoreStep.ENDED, finished_at=1.0), False),
    ],
)
async def test_only_records_that_wait_for_an_end_are_looked_up(record: Record, lives: bool) -> None:
    cluster = Cluster(records=(record,))
    async with cluster.reporting() as queue:
        if lives:
            async with asyncio.timeout(60):
                assert isinstance(await queue.get(), Ended)
        else:
            await _silence(queue)


async def test_end_of_a_record_that_came_after_the_reader_is_told() -> None:
    cluster = Cluster()
    async with cluster.reporting() as queue, asyncio.timeout(60):
        await _silence(queue)
        cluster.dependencies.on_records_saved((_of("a"),), ())
        assert await queue.get() == Ended("uid-of-a", "the pod was deleted")


async def test_refused_look_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    cluster = Cluster(records=(_of("a"),))
    find, refusals = cluster.server.find, [403, 500, 0]

    async def refusing(*given: Any, **named: Any) -> Any:
        if status := refusals.pop(0):
            raise error_of("GET pod", status, b"")
        return await find(*given, **named)

    monkeypatch.setattr(cluster.server, "find", refusing)
    assert await cluster.reports(1) == [Ended("uid-of-a", "the pod was deleted")]


async def test_pod_that_ends_while_it_is_looked_for_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its label came back meanwhile, so that the first look finds it well."""
    shown = _pod("a")
    cluster = Cluster(hidden=(shown,), records=(_of("a"),))
    find, has_looked, may_answer = cluster.server.find, asyncio.Event(), asyncio.Event()

    async def slow(*given: Any, **named: Any) -> Any:
        found = await find(*given, **named)
        has_looked.set()
        await may_answer.wait()
        return found

    monkeypatch.setattr(cluster.server, "find", slow)
    async with cluster.reporting() as queue, asyncio.timeout(60):
        await has_looked.wait()
        cluster.informer._put(shown)
        cluster.server.remove(PODS, "a", "bio")
        cluster.informer._drop(shown)
        may_answer.set()
        assert isinstance(await queue.get(), Starting)
        assert await queue.get() == Ended("uid-of-a", "the pod was deleted")


async def test_pod_whose_label_was_taken_away_has_not_ended_and_is_labelled_again() -> None:
    bare = _pod("a")
    bare = replace(bare, metadata=replace(bare.metadata, labels={}))
    cluster = Cluster(hidden=(bare,), records=(_of("a"),))
    async with cluster.reporting() as queue:
        await _silence(queue)
    assert cluster.server.objects[PODS, "bio", "a"]["metadata"]["labels"] == {names.PROTECTED: "true"}
    assert [one.reason for one in cluster.events.told] == ["ProtectionRestored"]


@pytest.mark.parametrize("labels", [{}, {names.PROTECTED: "true"}])
async def test_pod_that_ends_before_the_mirror_has_shown_it_again_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, labels: dict[str, str]
) -> None:
    """Its watch had broken off, and the next list is of a time at which it is gone."""
    monkeypatch.setattr(pod_end_confirmation, "LOOK_AGAIN_SECONDS", 0.001)
    hidden = _pod("a")
    cluster = Cluster(hidden=(replace(hidden, metadata=replace(hidden.metadata, labels=labels)),), records=(_of("a"),))
    async with cluster.reporting() as queue, asyncio.timeout(60):
        await _silence(queue)
        cluster.server.remove(PODS, "a", "bio")
        assert await queue.get() == Ended("uid-of-a", "the pod was deleted")


async def test_pod_that_the_mirror_shows_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_end_confirmation, "LOOK_AGAIN_SECONDS", 0.0)
    shown = _pod("a")
    cluster = Cluster(shown, records=(_of("a"),))
    find, looks = cluster.server.find, list[str]()

    async def counting(resource: Any, name: str, *given: Any, **named: Any) -> Any:
        looks.append(name)
        return await find(resource, name, *given, **named)

    monkeypatch.setattr(cluster.server, "find", counting)
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert isinstance(await queue.get(), Starting)
        cluster.pods._ends.enqueue_check(_of("a").workload)
        await _silence(queue)
    assert looks == ["a"]


async def test_conflict_with_another_writer_of_the_pod_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server answers so also where others write the same pod all the time, its uid being the same."""
    shorten_pauses(monkeypatch)
    bare = _pod("a")
    cluster = Cluster(hidden=(replace(bare, metadata=replace(bare.metadata, labels={})),), records=(_of("a"),))
    patch, refusals, labelled = cluster.server.patch, [409, 409, 0], asyncio.Event()

    async def refusing(*given: Any, **named: Any) -> None:
        if status := refusals.pop(0):
            raise error_of("PATCH pod", status, b"")
        await patch(*given, **named)
        labelled.set()

    monkeypatch.setattr(cluster.server, "patch", refusing)
    async with cluster.reporting() as queue, asyncio.timeout(60):
        await labelled.wait()
        await _silence(queue)


async def test_label_that_is_taken_away_while_it_is_watched_ends_nothing() -> None:
    shown = _pod("a")
    cluster = Cluster(shown, records=(_of("a"),))
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert isinstance(await queue.get(), Starting)
        await cluster.server.patch(PODS, "a", "bio", {"metadata": {"labels": {names.PROTECTED: None}}})
        cluster.informer._drop(shown)
        await _silence(queue)
        assert cluster.server.objects[PODS, "bio", "a"]["metadata"]["labels"] == {names.PROTECTED: "true"}
        cluster.server.remove(PODS, "a", "bio")
        cluster.informer._put(shown)
        assert isinstance(await queue.get(), Starting)
        cluster.informer._drop(shown)
        assert await queue.get() == Ended("uid-of-a", "the pod was deleted")


async def test_who_opted_out_and_concerns_no_record_is_left_alone() -> None:
    shown = _pod("a")
    cluster = Cluster(shown)
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert isinstance(await queue.get(), Starting)
        await cluster.server.patch(PODS, "a", "bio", {"metadata": {"labels": {names.PROTECTED: None}}})
        cluster.informer._drop(shown)
        await _silence(queue)
    assert cluster.server.objects[PODS, "bio", "a"]["metadata"]["labels"] == {}


async def test_ends_in_the_gap_of_a_watch_are_told_with_its_next_list() -> None:
    first, second = _pod("a"), _pod("b")
    cluster = Cluster(first, second)
    async with cluster.reporting() as queue, asyncio.timeout(60):
        assert {type(await queue.get()) for _ in range(2)} == {Starting}
        cluster.server.remove(PODS, "a", "bio")
        renewed = replace(second, metadata=replace(second.metadata, uid="another", resource_version="2"))
        cluster.server.remove(PODS, "b", "bio")
        cluster.server.put(PODS, msgspec.to_builtins(renewed))
        cluster.informer._replace((renewed,))
        told = [await queue.get() for _ in range(3)]
    assert {one.workload_uid for one in told if isinstance(one, Ended)} == {"uid-of-a", "uid-of-b"}
    assert [one.workload.uid for one in told if isinstance(one, Starting)] == ["another"]


def _node(name: str, *taints: str, version: str = "1") -> Node:
    metadata = Metadata(name, uid=name, resource_version=version)
    return Node(metadata, NodeSpec(tuple(Taint(key) for key in taints)))


async def test_nodes_that_were_lost_while_nobody_led_are_told() -> None:
    records = [
        replace(_of(name), workload=replace(_of(name).workload, node=node))
        for name, node in (("a", "gone"), ("b", "tainted"), ("c", "well"))
    ]
    records.append(replace(_of("d"), finished_at=1.0, workload=replace(_of("d").workload, node="gone long ago")))
    nodes = filled(_node("tainted", OUT_OF_SERVICE), _node("well", "other"))
    dependencies = PodNodeDependencies()
    dependencies.on_records_saved(tuple(records), ())
    api = FakeApi()
    changes = ObjectAgents(api, Projection(api, "s"), nodes, dependencies=dependencies).lost_nodes()
    early = asyncio.ensure_future(anext(changes))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not early.done(), "before all nodes are known, none is lost"
    nodes.synced.set()
    async with asyncio.timeout(60):
        assert {await early, await anext(changes)} == {NodeLost("gone"), NodeLost("tainted")}
        nodes._drop(_node("well"))
        assert await anext(changes) == NodeLost("well")


async def test_node_out_of_service_is_told_again_for_what_begins_there_later() -> None:
    nodes = filled(_node("tainted", OUT_OF_SERVICE), _node("well"))
    nodes.synced.set()
    dependencies = PodNodeDependencies()
    api = FakeApi()
    changes = ObjectAgents(api, Projection(api, "s"), nodes, dependencies=dependencies).lost_nodes()
    lost = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    records = [replace(_of(node), workload=replace(_of(node).workload, node=node)) for node in ("well", "tainted")]
    dependencies.on_records_saved(tuple(records), ())
    async with asyncio.timeout(60):
        assert await lost == NodeLost("tainted", keeps_restores=True)


@pytest.mark.parametrize("cached", [(), (_node("n", OUT_OF_SERVICE),)], ids=["unknown", "out of service"])
async def test_a_node_that_is_back_while_the_cache_is_late_is_not_lost(cached: tuple[Node, ...]) -> None:
    """Its agent saves a pod: that is not to be given up."""
    nodes, dependencies, api = filled(*cached), PodNodeDependencies(), FakeApi()
    nodes.synced.set()
    at_work = replace(_of("a"), workload=replace(_of("a").workload, node="n"))
    dependencies.on_records_saved((at_work,), ())
    api.put(NODES, msgspec.to_builtins(_node("n")))
    lost = asyncio.ensure_future(anext(LostNodes(api, nodes, dependencies).follow()))
    for _ in range(200):
        await asyncio.sleep(0)
    dependencies.on_records_saved((replace(at_work, uid="restore.later"),), ())
    for _ in range(200):
        await asyncio.sleep(0)
    assert not lost.done()
    api.put(NODES, msgspec.to_builtins(_node("n", OUT_OF_SERVICE)))
    nodes._put(_node("n", version="2"))
    nodes._put(_node("n", OUT_OF_SERVICE, version="3"))
    async with asyncio.timeout(60):
        assert await lost == NodeLost("n")


async def test_a_node_that_was_deleted_is_lost_although_another_one_has_its_name() -> None:
    nodes, api = filled(_node("n")), FakeApi()
    nodes.synced.set()
    api.put(NODES, msgspec.to_builtins(replace(_node("n"), metadata=replace(_node("n").metadata, uid="another"))))
    lost = asyncio.ensure_future(anext(LostNodes(api, nodes, PodNodeDependencies()).follow()))
    await asyncio.sleep(0)
    nodes._drop(_node("n"))
    async with asyncio.timeout(60):
        assert await lost == NodeLost("n")


MADE_AGAIN = "2027-01-15T08:00:00Z"
MADE_AT = 1_800_000_000.0


def _made_again(uid: str = "another", since: str = MADE_AGAIN) -> Node:
    return replace(_node("n"), metadata=replace(_node("n", version="2").metadata, uid=uid, creation_timestamp=since))


async def test_a_node_that_was_made_again_while_the_watch_was_broken_is_lost_for_what_began_before() -> None:
    nodes, api = filled(_node("n")), FakeApi()
    nodes.synced.set()
    api.put(NODES, msgspec.to_builtins(_made_again()))
    lost = asyncio.ensure_future(anext(LostNodes(api, nodes, PodNodeDependencies()).follow()))
    await asyncio.sleep(0)
    nodes._replace((_made_again(),))
    async with asyncio.timeout(60):
        assert await lost == NodeLost("n", began_before=MADE_AT + 1)


async def test_a_node_that_was_made_again_while_nobody_led_is_lost_for_what_began_before() -> None:
    nodes, dependencies, api = filled(_made_again()), PodNodeDependencies(), FakeApi()
    nodes.synced.set()
    older = replace(_of("a"), created_at=MADE_AT - 60, workload=replace(_of("a").workload, node="n"))
    newer = replace(_of("b"), created_at=MADE_AT + 60, workload=replace(_of("b").workload, node="n"))
    api.put(NODES, msgspec.to_builtins(_made_again()))
    dependencies.on_records_saved((newer,), ())
    losses = LostNodes(api, nodes, dependencies).follow()
    early = asyncio.ensure_future(anext(losses))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not early.done()
    early.cancel()
    with suppress(asyncio.CancelledError):
        await early
    dependencies.on_records_saved((older,), ())
    async with asyncio.timeout(60):
        assert await anext(LostNodes(api, nodes, dependencies).follow()) == NodeLost("n", began_before=MADE_AT + 1)


async def test_a_node_is_read_again_if_the_api_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    nodes, dependencies, api = filled(), PodNodeDependencies(), FakeApi()
    nodes.synced.set()
    dependencies.on_records_saved((_of("a"),), ())
    find, refusals = api.find, [500, 429]

    async def refusing(*given: Any, **named: Any) -> Any:
        if refusals:
            raise error_of("GET node", refusals.pop(), b"")
        return await find(*given, **named)

    monkeypatch.setattr(api, "find", refusing)
    async with asyncio.timeout(60):
        assert await anext(LostNodes(api, nodes, dependencies).follow()) == NodeLost(_of("a").workload.node)
