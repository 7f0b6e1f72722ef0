"""An object of one namespace orders nothing in another one, and no word of it leads anywhere but where it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import structlog

from cedana_sched.cluster.node.containers.pod_names import find_pod_names
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.order_validation import (
    PodOrderGuard,
    namespace_uid_of,
    objection_to_order,
    with_namespace_uid,
)
from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec
from cedana_sched.kube.errors import ApiError, NotServedError
from cedana_sched.kube.resources import CHECKPOINTS, RESTORES, Resource
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    ApplyRetention,
    CheckpointFailed,
    DiscardCancelled,
    Dump,
    FindSnapshot,
    Freeze,
    Kill,
    Order,
    Outcome,
    RemoveSnapshot,
    RestoreSnapshot,
    Staged,
)
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.cluster.node.bundle_tree import Host
from tests.unit.cluster.node.order_objects import (
    CHECKPOINT,
    IDENTITY,
    JOB,
    NODE,
    ORDERS,
    POD,
    RESTORE,
    SNAPSHOT,
    WORKLOAD,
    AnsweredApi,
    body_with,
    performed,
    pod_of,
    read,
)

BANK = Identity("tenant-b", "bank")
THEIR_POD = "00000000-1111-4222-8333-444444444444"


async def answers_to(body: dict[str, Any], kind: Resource, perform: Any = performed) -> list[Any]:
    """What the node answers to an order that stands in such an object."""
    api = AnsweredApi()
    feed = OrderFeed(api, NODE, perform)
    async with asyncio.TaskGroup() as group:
        feed._group = group
        feed._on_object_change(kind, None, read(body))
    return api.answers


@pytest.mark.parametrize(("kind", "order"), ORDERS)
def test_what_the_coordinator_writes_is_obeyed(kind: Resource, order: Order) -> None:
    assert objection_to_order(order, read(body_with(kind, order)), kind, NODE) is None


@pytest.mark.parametrize("said", [None, JOB])
@pytest.mark.parametrize(("kind", "order"), ORDERS)
async def test_an_order_is_of_the_namespace_that_its_object_says(
    kind: Resource, order: Order, said: str | None
) -> None:
    performed_orders = list[Order]()

    async def perform(told: Order) -> AsyncIterator[Outcome]:
        performed_orders.append(told)
        yield CheckpointFailed("", "")

    body = body_with(kind, with_namespace_uid(order, "another"))
    if said is not None:
        body["spec"]["namespaceUID"] = said
    await answers_to(body, kind, perform)
    assert performed_orders == [with_namespace_uid(order, said or "")]
    assert namespace_uid_of(performed_orders[0]) == (said or "")


def _order(body: dict[str, Any]) -> dict[str, Any]:
    order: dict[str, Any] = body["status"]["order"]["order"]
    return order


WORDS = ["../../../../proc/1/root/x", "..", "", ".hidden", "a/b", "/etc", "a\nb", "a\0b", "x" * 300, "é"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("kind", "order"), ORDERS)
async def test_no_uid_of_a_record_leads_out_of_its_folder(kind: Resource, order: Order, word: str) -> None:
    body = body_with(kind, order)
    body["spec"]["uid"] = _order(body)["restore_uid" if kind == RESTORES else "checkpoint_uid"] = word
    [answer] = await answers_to(body, kind)
    assert "is no uid of a record" in (answer.get("why") or answer.get("problem"))
    assert not answer.get("retryable")


@pytest.mark.parametrize("word", [*WORDS, POD.upper(), "pod-1", f"{POD}x", f"{POD}\n"])
@pytest.mark.parametrize(("kind", "order"), [one for one in ORDERS if hasattr(one[1], "workload")])
async def test_no_uid_of_a_pod_leads_out_of_its_folder(kind: Resource, order: Order, word: str) -> None:
    body = body_with(kind, order)
    body["spec"]["podRef"]["uid"] = _order(body)["workload"]["uid"] = word
    [answer] = await answers_to(body, kind)
    assert "is no uid of a pod" in answer["why"]


SPOILT: list[tuple[str, Resource, Order, tuple[Any, ...], Any, str]] = [
    ("pod", CHECKPOINTS, ORDERS[0][1], ("workload", "namespace"), "tenant-b", "of another namespace"),
    ("podname", CHECKPOINTS, ORDERS[0][1], ("workload", "name"), "victim-0", "it is about pod 'victim-0'"),
    ("strange", CHECKPOINTS, ORDERS[0][1], ("workload", "name"), "../../nodes/n1", "is no name of a pod"),
    ("another", CHECKPOINTS, ORDERS[2][1], ("workload", "uid"), THEIR_POD, "it is about pod 'md-0'"),
    ("node", CHECKPOINTS, ORDERS[2][1], ("workload", "node"), "n2", "is on node 'n2'"),
    ("dump", CHECKPOINTS, ORDERS[1][1], ("identity", "namespace"), "tenant-b", "of another namespace"),
    ("other", CHECKPOINTS, ORDERS[1][1], ("identity", "id"), "bank", "is not what the Checkpoint is about"),
    ("lineage", CHECKPOINTS, ORDERS[1][1], ("lineage", "continues", "identity", "namespace"), "b", "another namespace"),
    ("long", CHECKPOINTS, ORDERS[1][1], ("timeout_seconds",), 1e300, "no time in which"),
    ("retain", CHECKPOINTS, ORDERS[5][1], ("identity", "namespace"), "tenant-b", "of another namespace"),
    ("spare", CHECKPOINTS, ORDERS[5][1], ("spare",), [2**63], "generation that cannot be"),
    ("remove", CHECKPOINTS, ORDERS[6][1], ("snapshot", "identity", "namespace"), "tenant-b", "of another namespace"),
    ("remove", CHECKPOINTS, ORDERS[6][1], ("snapshot", "generation"), 0, "generation that cannot be"),
    ("discard", CHECKPOINTS, ORDERS[7][1], ("identity", "namespace"), "tenant-b", "of another namespace"),
    ("find", RESTORES, ORDERS[8][1], ("identity", "namespace"), "tenant-b", "of another namespace"),
    (
        "wanted",
        RESTORES,
        ORDERS[9][1],
        ("requested_snapshot", "identity", "namespace"),
        "tenant-b",
        "of another namespace",
    ),
    ("stage", RESTORES, ORDERS[10][1], ("snapshot", "identity", "namespace"), "tenant-b", "of another namespace"),
    ("stage", RESTORES, ORDERS[10][1], ("snapshot", "identity", "id"), "bank", "is not what the Restore is about"),
]


@pytest.mark.parametrize(("name", "kind", "order", "path", "value", "said"), SPOILT)
async def test_what_is_of_others_is_refused_in_words(
    name: str, kind: Resource, order: Order, path: tuple[Any, ...], value: Any, said: str
) -> None:
    body = body_with(kind, order)
    part = _order(body)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    [answer] = await answers_to(body, kind)
    assert said in (answer.get("why") or answer.get("problem")), name
    assert not answer.get("retryable")


@pytest.mark.parametrize(("kind", "order"), ORDERS)
async def test_one_kind_does_not_order_what_is_the_others(kind: Resource, order: Order) -> None:
    other = RESTORES if kind == CHECKPOINTS else CHECKPOINTS
    [answer] = await answers_to(body_with(kind, order), other)
    assert f"a {other.kind} orders no {type(order).__name__}" in (answer.get("why") or answer.get("problem"))


@pytest.mark.parametrize(("kind", "order"), ORDERS)
async def test_an_order_of_another_record_is_not_performed(kind: Resource, order: Order) -> None:
    """The answer is in the name of the record in whose object the order stands."""
    body = body_with(kind, order)
    body["spec"]["uid"] = "another"
    [answer] = await answers_to(body, kind)
    assert answer.get("checkpoint_uid", answer.get("restore_uid")) == "another"


async def test_what_is_no_order_is_left_alone() -> None:
    body = body_with(*ORDERS[0])
    for nothing in ({}, {"type": "Explode"}, {"type": "Freeze"}, {"type": "Freeze", "workload": 7}):
        body["status"]["order"]["order"] = nothing
        with structlog.testing.capture_logs() as logs:
            assert await answers_to(body, CHECKPOINTS) == []
        assert [one["event"] for one in logs] == ["order cannot be read"]


# -- is it a pod of this node?


class Node:
    """One that performs whatever passes the border."""

    def __init__(self, host: Host, *pods: Pod, watched: tuple[Pod, ...] = ()) -> None:
        self.performed: list[Order] = []
        api = AnsweredApi(*pods)
        self.known = NodePods(api, NODE, OrderFeed(api, NODE, performed))
        for pod in watched:
            self.known.informer._put(pod)
        self._places = host.places

    async def _do(self, order: Order) -> AsyncIterator[Outcome]:
        self.performed.append(order)
        yield Staged("done")

    async def _owners(self, uid: str) -> set[tuple[str, str]]:
        return find_pod_names(uid, self._places)

    async def obey(self, order: Order) -> Outcome:
        border = PodOrderGuard(self._do, self.known.is_on_node, self._owners)
        [outcome] = [one async for one in border.perform(order)]
        return outcome


OF_PODS = [order for _, order in ORDERS if hasattr(order, "workload")]
BEGINNINGS = [order for order in OF_PODS if type(order).__name__ in {"Freeze", "Dump", "Stage", "RestoreSnapshot"}]
ENDS = [order for order in OF_PODS if order not in BEGINNINGS]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.folder(host.places.bundles)
    return host


def _container(host: Host, namespace: str, name: str, uid: str = POD) -> None:
    notes = {f"io.kubernetes.cri.sandbox-{key}": value for key, value in
             (("uid", uid), ("namespace", namespace), ("name", name))}  # fmt: skip
    path = host.places.agent_path(host.places.bundles) / f"c-{namespace}-{name}/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"annotations": notes}))


@pytest.mark.parametrize("order", OF_PODS)
async def test_a_pod_of_this_node_is_served(host: Host, order: Order) -> None:
    watched = Node(host, watched=(pod_of(WORKLOAD),))
    await watched.obey(order)
    assert watched.performed == [order]
    not_yet_watched = Node(host, pod_of(WORKLOAD))
    await not_yet_watched.obey(order)
    assert not_yet_watched.performed == [order]


@pytest.mark.parametrize("order", OF_PODS)
async def test_a_pod_of_another_namespace_is_not(host: Host, order: Order) -> None:
    """Its uid is enough for nobody: it is protected here, and has a container here."""
    theirs = pod_of(WorkloadRef(POD, "tenant-b", "victim-0", NODE))
    nodes = [Node(host, watched=(theirs,))]
    await nodes[0].obey(order)
    assert nodes[0].performed == [], "also while none of its containers runs"
    _container(host, "tenant-b", "victim-0")
    for node in (*nodes, Node(host, theirs), Node(host)):
        outcome = await node.obey(order)
        assert node.performed == []
        assert "is no pod of this node" in getattr(outcome, "why", "")


@pytest.mark.parametrize("order", BEGINNINGS)
async def test_nothing_begins_for_a_pod_that_is_not_here(host: Host, order: Order) -> None:
    elsewhere = Pod(Metadata("md-0", "tenant-a", POD), PodSpec("n2"))
    successor = pod_of(WorkloadRef(THEIR_POD, "tenant-a", "md-0", NODE))
    for node in (Node(host), Node(host, elsewhere), Node(host, successor)):
        await node.obey(order)
        assert node.performed == []


@pytest.mark.parametrize("order", ENDS)
async def test_what_is_undone_is_undone_where_the_pod_has_gone(host: Host, order: Order) -> None:
    node = Node(host)
    await node.obey(order)
    [done] = node.performed
    assert done == (msgspec.structs.replace(order, insist=True) if isinstance(order, Kill) else order)


@pytest.mark.parametrize("order", OF_PODS)
async def test_a_pod_deleted_by_force_is_known_by_its_containers(host: Host, order: Order) -> None:
    _container(host, "tenant-a", "md-0")
    node = Node(host)
    await node.obey(order)
    assert node.performed == [order]


async def test_an_api_server_that_does_not_say_decides_nothing(host: Host) -> None:
    class Away(AnsweredApi):
        async def get(self, *_: Any, **__: Any) -> Any:
            raise NotServedError("who are you?", status=404)

    node = Node(host)
    node.known.present._api = Away()
    with pytest.raises(ApiError):
        await node.obey(OF_PODS[0])
    assert node.performed == []


@pytest.mark.parametrize("order", [FindSnapshot(RESTORE, BANK), ApplyRetention(CHECKPOINT, BANK, cast("Any", None))])
async def test_the_store_is_asked_for_no_pod(host: Host, order: Order) -> None:
    node = Node(host)
    await node.obey(order)
    assert node.performed == [order]


# -- objects of another namespace about a pod of this one


async def test_a_checkpoint_of_another_namespace_holds_no_pod() -> None:
    api = AnsweredApi()
    feed = OrderFeed(api, NODE, performed)
    pods = NodePods(api, NODE, feed)
    for informer in (feed.checkpoints, feed.restores):
        informer.synced.set()
    pods.informer._put(pod_of(WORKLOAD))
    order = Freeze(CHECKPOINT, WORKLOAD)
    theirs = msgspec.structs.replace(
        read(body_with(CHECKPOINTS, order)), metadata=Metadata("forged", "tenant-b", "u", "1")
    )
    feed.checkpoints._put(theirs)
    async with asyncio.timeout(60):
        await pods.wait_released(POD)
    feed.checkpoints._put(read(body_with(CHECKPOINTS, order)))
    assert pods._is_held(POD)


def test_what_is_said_of_orders_is_short() -> None:
    order = Dump(CHECKPOINT, WORKLOAD, IDENTITY, cast("Any", None), "", "", 1.0)
    long = msgspec.structs.replace(order, checkpoint_uid="../" * 10_000)
    said = objection_to_order(long, read(body_with(CHECKPOINTS, order)), CHECKPOINTS, NODE)
    assert said is not None
    assert len(said) < 200


def test_snapshots_are_of_the_own_identity() -> None:
    for order in (
        RestoreSnapshot(RESTORE, WORKLOAD, SnapshotRef(BANK, 1)),
        RemoveSnapshot(CHECKPOINT, SnapshotRef(BANK, 1)),
        DiscardCancelled(CHECKPOINT, BANK),
    ):
        kind = RESTORES if isinstance(order, RestoreSnapshot) else CHECKPOINTS
        assert objection_to_order(order, read(body_with(kind, order)), kind, NODE) is not None
    assert SNAPSHOT.identity == IDENTITY
