"""The scheduling gate of a pod opens when its snapshot is committed or has failed, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.scheduling_gates import LARGEST_AFFINITY_BYTES, Gates
from cedana_sched.kube.builtin_kinds import Metadata, Node, Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import decoded
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model import codec
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import CONFIRMATION_SECONDS
from cedana_sched.model.records import Checkpoint, CheckpointStep
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import checkpoint

_OLD_CPU = Compatibility("x86_64", frozenset({"sse2"}), (6, 1))
_NEW_CPU = Compatibility("x86_64", frozenset({"sse2", "avx512f"}), (6, 1))


def _node(name: str, cpu: str, facts: Compatibility) -> Node:
    annotations = {names.NODE_FACTS: codec.encode(facts).decode()}
    return Node(Metadata(name=name, labels={names.CPU_FEATURES: cpu}, annotations=annotations, resource_version=name))


def _gated(index: int) -> Object:
    metadata = {
        "name": f"md-{index}-new",
        "namespace": "bio",
        "uid": f"new-{index}",
        "annotations": {names.ID: "md", names.INDEX: str(index)},
    }
    gates = [{"name": "somebody/else"}, {"name": names.RESTORE_GATE}]
    return {"metadata": metadata, "spec": {"schedulingGates": gates}}


class _Server:
    def __init__(self, *pods: Object) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.patches: dict[str, list[Object]] = {}
        self.left: list[Unreadable] = []

    async def get(self, resource: Any, name: str, namespace: str, *, into: type[Any]) -> Any:
        return decoded(f"GET {name}", msgspec.json.encode(self.pods[name]), into)

    async def patch(self, resource: Any, name: str, namespace: str, patch: list[Object]) -> None:
        seen, change = patch[:2], patch[2:]
        tested = [(one["op"], one["path"]) for one in seen]
        assert tested == [("test", "/metadata/uid"), ("test", "/metadata/resourceVersion")], "another pod of that name"
        self.patches[name] = change

    def unreadable(self, _: Resource, one: Unreadable) -> None:
        self.left.append(one)

    def informer(self) -> Informer[Pod]:
        return filled(*(msgspec.convert(pod, Pod) for pod in self.pods.values()))


@asynccontextmanager
async def _opening(gates: Gates) -> AsyncIterator[None]:
    task = asyncio.create_task(gates.run())
    try:
        yield
        for _ in range(10):
            await asyncio.sleep(0)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _gates(server: _Server, offers: Informer[Any] | None = None) -> Gates:
    nodes = filled(_node("node-1", "new", _NEW_CPU), _node("node-2", "old", _OLD_CPU), _node("node-3", "new", _NEW_CPU))
    offers = filled() if offers is None else offers
    offers.synced.set()
    return Gates(cast("Api", server), server.informer(), nodes, CheckpointsById(offers), server.unreadable)


async def test_gate_opens_when_the_last_checkpoint_of_the_identity_is_settled() -> None:
    server = _Server(_gated(1), _gated(2))
    gates = _gates(server)
    dumping = checkpoint(1, CheckpointStep.DUMPING)
    second = replace(checkpoint(1, CheckpointStep.WAITING), uid="s2.w1.1")
    gates.on_records_saved((dumping, second, checkpoint(2, CheckpointStep.DUMPING)))
    async with _opening(gates):
        await asyncio.sleep(0)
        gates.on_records_saved((replace(dumping, step=CheckpointStep.FAILED),))
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.patches == {}
        gates.on_records_saved((replace(second, step=CheckpointStep.READY),))
    assert set(server.patches) == {"md-1-new"}
    assert server.patches["md-1-new"][-2:] == [
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.RESTORE_GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]


async def test_pod_may_only_go_where_its_snapshot_can_continue() -> None:
    server = _Server(_gated(1))
    gates = _gates(server)
    gates.on_records_saved((checkpoint(1, CheckpointStep.DUMPING),))
    async with _opening(gates):
        gates.on_records_saved((checkpoint(1, CheckpointStep.READY),))
    [affinity, *_] = server.patches["md-1-new"]
    [term] = affinity["value"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": names.CPU_FEATURES, "operator": "In", "values": ["new"]}]


async def test_gate_of_a_pod_whose_checkpoint_was_settled_before_opens_at_once() -> None:
    server = _Server(_gated(1))
    gates = _gates(server)
    gates.on_records_saved((checkpoint(1, CheckpointStep.FAILED),))
    async with _opening(gates):
        pass
    assert set(server.patches) == {"md-1-new"}


BEFORE = "0a1b2c3d-0000-4000-8000-0000000000f1"
NOW = "0a1b2c3d-0000-4000-8000-0000000000f2"


def _noted(record: Checkpoint, uid: str) -> Checkpoint:
    return replace(record, workload=replace(record.workload, namespace_uid=uid))


@pytest.mark.parametrize(("noted", "opens"), [(BEFORE, True), (NOW, False), ("", False)])
async def test_gate_waits_for_no_checkpoint_of_a_namespace_that_had_the_name_before(noted: str, opens: bool) -> None:
    body = _gated(1)
    body["metadata"]["annotations"][names.NAMESPACE_UID] = NOW
    server = _Server(body)
    gates = _gates(server)
    gates.on_records_saved((_noted(checkpoint(1, CheckpointStep.DUMPING), noted),))
    async with _opening(gates):
        pass
    assert set(server.patches) == ({"md-1-new"} if opens else set())


async def test_gate_opens_though_a_checkpoint_of_the_namespace_before_is_never_settled() -> None:
    body = _gated(1)
    body["metadata"]["annotations"][names.NAMESPACE_UID] = NOW
    server = _Server(body)
    gates = _gates(server)
    mine = _noted(replace(checkpoint(1, CheckpointStep.DUMPING), uid="s2.w1.1"), NOW)
    gates.on_records_saved((_noted(checkpoint(1, CheckpointStep.DUMPING), BEFORE), mine))
    async with _opening(gates):
        gates.on_records_saved((replace(mine, step=CheckpointStep.FAILED),))
    assert set(server.patches) == {"md-1-new"}


@pytest.mark.parametrize(("noted", "is_kept"), [(BEFORE, False), (NOW, True), ("", True)])
async def test_where_the_namespace_before_had_a_snapshot_taken_says_nothing_of_nodes(noted: str, is_kept: bool) -> None:
    body = _gated(1)
    body["metadata"]["annotations"][names.NAMESPACE_UID] = NOW
    server = _Server(body)
    gates = _gates(server)
    gates.on_records_saved((_noted(checkpoint(1, CheckpointStep.READY), noted),))
    async with _opening(gates):
        pass
    assert (server.patches["md-1-new"][0]["path"] == "/spec/affinity") == is_kept


async def test_nothing_opens_before_it_is_known_what_is_in_flight() -> None:
    server = _Server(_gated(1))
    gates = _gates(server)
    async with _opening(gates):
        pass
    assert server.patches == {}


async def test_what_a_pod_asked_for_of_its_nodes_stays_beside_ours() -> None:
    body = _gated(1)
    body["spec"] |= {"affinity": {"podAffinity": {"x": "y"}}, "tolerations": [{}]}
    server = _Server(body)
    gates = _gates(server)
    gates.on_records_saved((checkpoint(1, CheckpointStep.READY),))
    async with _opening(gates):
        await asyncio.sleep(0)
    assert server.patches["md-1-new"][0]["value"].keys() == {"podAffinity", "nodeAffinity"}


async def test_gate_of_a_pod_that_asks_for_more_than_is_ever_meant_stays_closed_and_that_is_said() -> None:
    body = _gated(1)
    body["spec"]["affinity"] = {"podAffinity": {"x": "y" * LARGEST_AFFINITY_BYTES}}
    server = _Server(body)
    gates = _gates(server)
    gates.on_records_saved((checkpoint(1, CheckpointStep.READY),))
    async with _opening(gates):
        await asyncio.sleep(0)
    assert server.patches == {}
    assert "spec.affinity" in server.left[0].problem


async def test_gate_of_a_pod_that_cannot_be_read_any_more_is_told_of_and_not_tried_again() -> None:
    server = _Server(_gated(1))
    gates = _gates(server)
    server.pods["md-1-new"] = {"metadata": {"name": 7}}
    gates.on_records_saved((checkpoint(1, CheckpointStep.READY),))
    async with _opening(gates):
        await asyncio.sleep(0)
    assert server.patches == {}
    assert {one.metadata.uid for one in server.left} == {"new-1"}


def _offered(index: int, step: CheckpointStep) -> KnownCheckpoint:
    metadata = {"name": f"md-{index}", "namespace": "bio", "resourceVersion": "1"}
    spec = {"identity": {"id": "md", "index": index}, "podRef": {"nodeName": "node-1"}}
    status: Object = {"step": step}
    if step is CheckpointStep.READY:
        status["snapshot"] = {"id": "md", "index": index, "generation": 1}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def _sibling(number: int) -> Object:
    pod = _gated(number)
    pod["metadata"]["annotations"][names.RESTORE_IDENTITY] = names.any_snapshot_restore_identity("md")
    return pod


async def test_pod_that_nothing_tells_apart_gets_the_number_of_a_snapshot_and_its_nodes() -> None:
    server = _Server(_sibling(4711))
    gates = _gates(server, filled(_offered(7, CheckpointStep.READY)))
    gates.on_records_saved(())
    async with _opening(gates):
        await asyncio.sleep(0)
    number, restores, affinity, _, removal = server.patches["md-4711-new"]
    assert (number["path"], number["value"]) == ("/metadata/annotations/sched.cedana.ai~1index", "7")
    assert (restores["path"], restores["value"]) == ("/metadata/annotations/sched.cedana.ai~1restore-identity", "md/7")
    assert affinity["path"] == "/spec/affinity"
    assert removal["op"] == "remove"


async def test_pod_whose_chosen_snapshot_is_in_flight_gets_its_number_at_once_and_waits() -> None:
    server = _Server(_sibling(4711))
    gates = _gates(server, filled(_offered(1, CheckpointStep.DUMPING)))
    dumping = checkpoint(1, CheckpointStep.DUMPING)
    gates.on_records_saved((dumping,))
    async with _opening(gates):
        for _ in range(10):
            await asyncio.sleep(0)
        assert [one["value"] for one in server.patches["md-4711-new"]] == ["1", "md/1"]
        metadata = server.pods["md-4711-new"]["metadata"]
        metadata["annotations"] |= {names.INDEX: "1", names.RESTORE_IDENTITY: "md/1"}
        gates._pods._put(replace(msgspec.convert(server.pods["md-4711-new"], Pod)))
        gates.on_records_saved((replace(dumping, step=CheckpointStep.READY),))
    assert server.patches["md-4711-new"][-1]["op"] == "remove"


async def test_nothing_is_kept_of_checkpoints_that_are_forgotten() -> None:
    """10,000 identities pass by; where their snapshots were taken, their objects tell."""
    gates = _gates(_Server())
    for number in range(10_000):
        ready = checkpoint(number, CheckpointStep.READY)
        gates.on_records_saved((ready,))
        gates.on_records_saved((), (ready,))
    assert not gates._taken_on
    assert not gates._in_flight


async def test_pod_may_only_go_where_the_snapshot_of_a_forgotten_checkpoint_can_continue() -> None:
    server = _Server(_gated(7))
    gates = _gates(server, filled(_offered(7, CheckpointStep.READY)))
    gates.on_records_saved(())
    async with _opening(gates):
        await asyncio.sleep(0)
    [affinity, *_] = server.patches["md-7-new"]
    assert affinity["path"] == "/spec/affinity"


async def test_a_pod_that_nobody_can_read_is_named_and_left_and_the_others_go_on() -> None:
    written: dict[str, dict[str, str]] = {
        "number": {names.ID: "md", names.INDEX: "three"},
        "huge": {names.ID: "md", names.INDEX: "9" * 30},
        "name": {names.ID: "../md", names.INDEX: "1"},
        "nothing": {},
        "any": {
            names.ID: "../md",
            names.INDEX: "1",
            names.RESTORE_IDENTITY: names.any_snapshot_restore_identity("../md"),
        },
    }
    pods = [_gated(7)]
    for name, texts in written.items():
        bad = _gated(1)
        bad["metadata"] |= {"name": name, "uid": name, "annotations": texts}
        pods.append(bad)
    server, named = _Server(*pods), dict[str, str]()
    offers = filled()
    offers.synced.set()
    nodes = filled()
    gates = Gates(
        cast("Api", server),
        server.informer(),
        nodes,
        CheckpointsById(offers),
        lambda resource, one: named.update({f"{resource.kind} {one.metadata.name}": one.problem}),
    )
    gates.on_records_saved(())
    async with _opening(gates):
        pass
    assert set(named) == {f"Pod {name}" for name in written}
    assert "three" in named["Pod number"]
    assert list(server.patches) == ["md-7-new"]


def _deleted(index: int, **annotations: str) -> Object:
    """A running pod of the id that is being deleted, and whose preStop hook waits."""
    told = {names.ID: "md", names.INDEX: str(index), names.CONFIRM_DELETION: names.CONFIRM_ALWAYS, **annotations}
    metadata = {"name": f"md-{index}", "namespace": "bio", "uid": f"old-{index}", "annotations": told}
    return {"metadata": {**metadata, "deletionTimestamp": "2040-05-01T12:10:00Z"}, "status": {"phase": "Running"}}


def _deleted_long_ago(index: int) -> Object:
    body = _deleted(index)
    body["metadata"]["deletionTimestamp"] = "2026-05-01T12:10:00Z"
    return body


def _deleted_as_its_coordinator_died(index: int) -> Object:
    """The next one has just begun to lead, and the pod's preStop hook still waits."""
    body = _deleted(index)
    body["metadata"]["deletionTimestamp"] = (
        SERVER_TIME.now() - timedelta(seconds=CONFIRMATION_SECONDS - 5)
    ).isoformat()
    return body


def _of_any_index(body: Object) -> Object:
    body["metadata"]["annotations"][names.RESTORE_IDENTITY] = names.any_snapshot_restore_identity("md")
    return body


@pytest.mark.parametrize(
    ("deleted", "opens"),
    [
        (_deleted(1), False),
        (_deleted(2), True),
        (_deleted(1, **{names.NOT_PREEMPTED: "true"}), True),
        (_deleted(1, **{names.CONFIRM_DELETION: names.CONFIRM_IF_EVICTED}), True),
        (_deleted_long_ago(1), True),
    ],
    ids=[
        "of its identity",
        "of another",
        "deleted for good",
        "explained by its scheduler",
        "on a dead node",
    ],
)
async def test_gate_waits_until_the_deletion_of_the_predecessor_is_explained(deleted: Object, opens: bool) -> None:
    server = _Server(_gated(1), deleted)
    gates = _gates(server)
    gates.on_records_saved(())
    async with _opening(gates):
        pass
    assert set(server.patches) == ({"md-1-new"} if opens else set())


async def test_gate_waits_for_a_deletion_that_began_as_the_coordinator_before_died() -> None:
    server = _Server(_gated(1), _deleted_as_its_coordinator_died(1))
    gates = _gates(server)
    gates.on_records_saved(())
    async with _opening(gates):
        pass
    assert server.patches == {}


async def test_gate_of_an_indistinguishable_pod_waits_for_any_deletion_and_continues_what_is_saved() -> None:
    server, offers = _Server(_of_any_index(_gated(7)), _deleted(1)), filled()
    gates = _gates(server, offers)
    gates.on_records_saved(())
    async with _opening(gates):
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.patches == {}
        gates.on_records_saved((checkpoint(1, CheckpointStep.READY),))
        status = {"step": "Ready", "phase": "Ready", "snapshot": {"generation": 1, "id": "md", "index": 1}}
        spec = {"identity": {"id": "md", "index": 1}, "podRef": {"uid": "old-1", "nodeName": "node-1"}}
        metadata = {
            "name": "md-1-1",
            "namespace": "bio",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "2040-05-01T12:10:00Z",
        }
        offers._put(msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint))
    assert {"op": "replace", "path": _path(names.INDEX), "value": "1"} in server.patches["md-7-new"]


async def test_gate_opens_once_the_deleted_pod_is_gone() -> None:
    server = _Server(_gated(1), _deleted(1))
    pods = server.informer()
    gates = Gates(cast("Api", server), pods, filled(), CheckpointsById(filled()), server.unreadable)
    gates._checkpoints.synced.set()
    gates.on_records_saved(())
    async with _opening(gates):
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.patches == {}
        pods._drop(msgspec.convert(server.pods["md-1"], Pod))
    assert set(server.patches) == {"md-1-new"}


def _path(name: str) -> str:
    return f"/metadata/annotations/{name.replace('/', '~1')}"


@pytest.mark.parametrize(
    ("spec", "status", "opens"),
    [
        ({}, {"step": "Dumping"}, True),
        ({"reason": "Interval"}, {"step": "Dumping"}, False),
        ({}, {"step": "Failed"}, False),
        ({}, {"step": "Ready", "commitTime": "2040-05-01T12:09:30Z"}, True),
        ({}, {"step": "Ready", "commitTime": "2040-05-01T10:00:00Z"}, False),
    ],
    ids=["in flight", "periodic", "failed before", "saved just before", "of an earlier eviction"],
)
def test_only_a_checkpoint_of_the_deletion_explains_it(spec: Object, status: Object, opens: bool) -> None:
    named = {"identity": {"id": "md", "index": 1}, "podRef": {"uid": "old-1", "nodeName": "node-1"}, **spec}
    metadata = {"name": "md-1", "namespace": "bio", "uid": "u", "resourceVersion": "1"}
    dated = {**metadata, "creationTimestamp": "2040-05-01T10:00:00Z"}
    known = CheckpointsById(
        filled(msgspec.convert({"metadata": dated, "spec": named, "status": status}, KnownCheckpoint))
    )
    pod = msgspec.convert(_deleted(1), Pod)
    assert known.has_checkpoint_for_deletion(pod, Identity("bio", "md", 1)) is opens


async def test_gated_pods_of_one_id_are_not_read_for_each_deletion_that_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant decides how many pods an id has, and the gates of all tenants are opened by one coordinator."""
    numbers, read = range(20), list[str]()
    server = _Server(*(_of_any_index(_gated(100 + number)) for number in numbers), *map(_deleted, numbers))
    pods, get = server.informer(), server.get

    async def get_and_count(resource: Any, name: str, namespace: str, *, into: type[Any]) -> Any:
        read.append(name)
        return await get(resource, name, namespace, into=into)

    monkeypatch.setattr(server, "get", get_and_count)
    gates = Gates(cast("Api", server), pods, filled(), CheckpointsById(filled()), server.unreadable)
    gates._checkpoints.synced.set()
    gates.on_records_saved(())
    async with _opening(gates):
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.patches == {}
        for number in numbers:
            pods._drop(msgspec.convert(server.pods[f"md-{number}"], Pod))
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(server.patches) == len(numbers)
    assert len(read) <= 3 * len(numbers)
