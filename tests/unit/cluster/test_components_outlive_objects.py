"""Whatever a tenant writes into an object ends no component, and costs no other object."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.cluster.coordinator.storage_probe import StorageProbe
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CHECKPOINT_STORAGES,
    CHECKPOINTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PREEMPTION_HOLDS,
    RESTORES,
    Resource,
)
from cedana_sched.kube.watching import Informer
from cedana_sched.model import codec
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import FindSnapshot, Order, Outcome, RemoveSnapshot, SnapshotRemoved
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.records import Restore, RestoreStep
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched_kueue.objects import ADMISSION_CHECKS, CLUSTER_QUEUES, WORKLOADS
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_volcano.objects import POD_GROUPS, QUEUES
from cedana_sched_webhooks.caches import CacheInformers
from tests.unit.cluster.coordinator.test_object_journal import READY, SYSTEM
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD
from tests.unit.kube.moody_api_server import MoodyApiServer

# -- one good object of each kind that tenants, or their controllers, can write


def _body(resource: Resource, **parts: Any) -> Object:
    namespace = {"namespace": "lab"} if resource.namespaced else {}
    metadata = {
        "name": "one",
        "uid": f"uid-{resource.plural}",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        **namespace,
    }
    return {"metadata": metadata | parts.pop("metadata", {}), **parts}


_OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "one", "uid": "uid-jobs", "controller": True}
_MARK = '{"by":"volcano","since":"2026-11-20T10:00:00.000+00:00","last":"2026-11-20T10:00:00.000+00:00"}'
_ANNOTATIONS = {
    names.ID: "sim", names.INDEX: "0", names.RESTORE_IDENTITY: "sim/0", names.EVICTION_REQUESTED: _MARK,
    names.POLICY: "p", names.RESTORE_FROM: "sim/0@1", names.ORIGINAL_GRACE_PERIOD: "30",
    names.CONFIRM_DELETION: names.CONFIRM_ALWAYS, "scheduling.k8s.io/group-name": "one",
}  # fmt: skip
_FACTS = codec.encode(Compatibility("x86_64", frozenset({"avx2"}), (6, 12), "4.2.1")).decode()
_TEMPLATE = {
    "metadata": {"annotations": {names.ID: "sim"}},
    "spec": {"containers": [{"name": "c", "env": [{"name": "CEDANA_CHECKPOINT", "value": "sim"}]}]},
}
_EVICTED = [
    {"type": kind, "status": "True", "reason": "Preempted", "message": "(UID: u, JobUID: v)",
     "lastTransitionTime": "2026-11-20T10:00:00Z"}
    for kind in ("Evicted", "Preempted", "QuotaReserved")
]  # fmt: skip


RESTORE = Restore(
    uid="w1",
    adapter="kueue",
    workload=READY.workload,
    identity=READY.identity,
    policy=CheckpointPolicy(),
    step=RestoreStep.RUNNING,
    created_at=1_800_000_000.0,
    deadline=1_800_000_600.0,
)


def _of_record(record: Any) -> Object:
    body = to_object(record, SYSTEM)
    ref = SnapshotRef(msgspec.structs.replace(READY.identity, namespace="lab"), 1)
    order = FindSnapshot(record.uid, ref.identity) if isinstance(record, Restore) else RemoveSnapshot(record.uid, ref)
    body["status"] |= {"order": {"number": 2, "order": codec.to_builtins(order)}}
    body["status"] |= {"answer": {"number": 1, "outcome": codec.to_builtins(SnapshotRemoved(record.uid))}}
    body["metadata"]["uid"] = f"uid-{record.uid}"
    body["metadata"]["namespace"] = "lab"
    return body


GOOD: dict[Resource, Object] = {
    PODS: _body(
        PODS,
        metadata={"labels": {names.PROTECTED: "true"}, "annotations": _ANNOTATIONS, "ownerReferences": [_OWNER]},
        spec={"schedulerName": "volcano", "nodeName": "node-1", "containers": [{"name": "c"}],
              "schedulingGates": [{"name": names.RESTORE_GATE}]},
        status={"phase": "Running", "conditions": [], "startTime": "2026-11-20T10:00:00Z",
                "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
    ),
    JOBS: _body(JOBS, spec={"suspend": False, "template": _TEMPLATE}, status={"conditions": []}),
    CHECKPOINTS: _of_record(READY),
    PREEMPTION_HOLDS: _of_record(HOLD),
    RESTORES: _of_record(RESTORE),
    CHECKPOINT_POLICIES: _body(CHECKPOINT_POLICIES, spec={"onRestoreFailure": "Fail"}),
    WORKLOADS: _body(
        WORKLOADS,
        metadata={"ownerReferences": [_OWNER]},
        spec={"podSets": [{"name": "main", "template": _TEMPLATE}]},
        status={"conditions": _EVICTED, "admissionChecks": [{"name": "one", "state": "Pending"}]},
    ),
    ADMISSION_CHECKS: _body(ADMISSION_CHECKS, spec={"controllerName": names.ADMISSION_CHECK_CONTROLLER}),
    CLUSTER_QUEUES: _body(CLUSTER_QUEUES, spec={}),
    POD_GROUPS: _body(POD_GROUPS, spec={"minMember": 2}, status={"running": 2}),
    QUEUES: _body(QUEUES, metadata={"annotations": {names.PROTECT: "true"}}),
    NODES: _body(
        NODES,
        metadata={"labels": {names.NODE_PREPARED: "true", names.CPU_FEATURES: "c"},
                  "annotations": {names.NODE_FACTS: _FACTS, names.UNINSTALL: "2026-11-20T10:00:00Z"}},
        spec={"unschedulable": False, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        status={"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4", "memory": "8Gi"}},
    ),
    NAMESPACES: _body(NAMESPACES, metadata={"labels": {"a": "b"}}, status={"phase": "Active"}),
    CHECKPOINT_STORAGES: _body(
        CHECKPOINT_STORAGES,
        spec={"s3": {"bucket": "work", "endpoint": "https://127.0.0.1:1", "region": "r", "prefix": "p"}},
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    ),
}  # fmt: skip

# -- what becomes of them

NO_TEXTS = (
    ["", "three", "-1", "9" * 30, "9" * 5_000, "٣", "1_0", " 1", "a/../b", "x" * 300, "md@" + "9" * 5_000, "*", "sim/*",
     "2026-11-20+10:00:00", "2026-11-20T10:00:00", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59",
     "[" * 3_000,
     '{"by":"","since":"2026-11-20+10:00:00","last":"2026-11-20+10:00:00"}', "{}", "null", "\u0000"]
)  # fmt: skip
TEXTS = st.sampled_from(NO_TEXTS)
NO_VALUES: tuple[Any, ...] = (
    None,
    True,
    -7,
    2**63 - 1,
    0.5,
    "three",
    "9" * 5_000,
    "0001-01-01T00:00:00+00:00",
    [],
    {},
    [7],
    {"x": 7},
)
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.just([]) | st.just({}) | st.just([{}]) | st.just([7]) | st.just({"x": {"y": 7}})
)  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything below spec and status, and of labels' and annotations' values: what an API server lets through."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [one for key, inner in value.items() for one in _paths(inner, (*path, key))]
    elif isinstance(value, list):
        found += [one for position, inner in enumerate(value) for one in _paths(inner, (*path, position))]
    return found


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[Resource, Object]:
    resource = draw(st.sampled_from(list(GOOD)))
    body = copy.deepcopy(GOOD[resource])
    metadata = body["metadata"]
    metadata["name"] = f"spoilt-{draw(st.integers(0, 5))}"
    metadata["uid"] = f"{metadata.get('uid')}-{draw(st.integers(0, 1))}"
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(_places(body)))
        _put(body, place, draw(TEXTS if place[0] == "metadata" else VALUES))
    return resource, body


def _places(body: Object) -> list[tuple[Any, ...]]:
    places = [one for one in _paths(body) if one[0] in {"spec", "status"}]
    metadata = body["metadata"]
    return places + [("metadata", kind, key) for kind in ("labels", "annotations") for key in metadata.get(kind) or ()]


def _put(body: Object, place: tuple[Any, ...], value: Any) -> None:
    *parents, last = place
    inner: Any = body
    for part in parents:
        inner = inner[part]
    inner[last] = copy.deepcopy(value)  # strategies share what they draw


def each_spoilt() -> list[tuple[Resource, Object]]:
    """Each field of each kind once with each thing that does not belong there."""
    found: list[tuple[Resource, Object]] = []
    for resource, good in GOOD.items():
        for place in _places(good):
            for value in NO_TEXTS if place[0] == "metadata" else NO_VALUES:
                body = copy.deepcopy(good)
                body["metadata"] |= {"name": f"spoilt-{len(found)}", "uid": f"uid-{len(found)}"}
                _put(body, place, value)
                found.append((resource, body))
    return found


# -- who reads them


Part = Callable[[Api, MoodyApiServer], AbstractAsyncContextManager[list[Informer[Any]]]]


@asynccontextmanager
async def _running(works: list[Any], informers: list[Informer[Any]]) -> AsyncIterator[list[Informer[Any]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        for informer in informers:
            await informer.synced.wait()
        yield informers
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def coordinator(api: Api, _: MoodyApiServer) -> AsyncIterator[list[Informer[Any]]]:
    leader = LeadingCoordinator(api, CoordinatorConfiguration(namespace=SYSTEM, adapters=("kueue", "volcano")), "me")
    kueue, volcano = (cast("Any", leader._adapters[name]) for name in ("kueue", "volcano"))
    async with leader.run_coordinator():
        informers: list[Informer[Any]] = [
            leader.pods,
            leader._checkpoints,
            leader._nodes,
            *leader._agents._informers,
            leader._policies._informer,
        ]
        informers += [kueue._informers.by_resource[JOBS], kueue._workloads]
        informers += [volcano._groups, volcano._nominations._waiting, volcano._queues]
        informers += [leader._missed_by_webhook.unlabelled, leader._missed_by_webhook.refused]
        for informer in informers:
            await informer.synced.wait()
        yield informers


def webhooks(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[list[Informer[Any]]]:
    informers = CacheInformers(api)
    return _running([informers.run()], list(informers._informers))


def extender(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[list[Informer[Any]]]:
    holding = CachedPodStates(api)
    return _running([holding.run()], list(holding._informers()))


def agent(api: Api, _: MoodyApiServer) -> AbstractAsyncContextManager[list[Informer[Any]]]:
    async def perform(_: Order) -> AsyncIterator[Outcome]:
        await asyncio.Event().wait()
        yield cast("Outcome", None)

    feed = OrderFeed(api, "node-1", perform)
    pods = NodePods(api, "node-1", feed)
    return _running([pods.run(), feed.run()], [pods.informer, feed.checkpoints, feed.restores])


@asynccontextmanager
async def storages(api: Api, _: MoodyApiServer) -> AsyncIterator[list[Informer[Any]]]:
    probe = StorageProbe(api, first=_opened, later=_opened)
    async with _running([probe.run()], [probe._informer]) as informers:
        yield informers


def _opened(config: StorageConfig) -> None:
    """As far as one comes without a store that answers."""
    SnapshotStore.open(config)


async def _outlives(part: Part, before: list[tuple[Resource, Object]], after: list[tuple[Resource, Object]]) -> None:
    server = MoodyApiServer()
    for resource, body in before:
        server.put(resource, copy.deepcopy(body))
    with structlog.testing.capture_logs() as logs:
        async with server.serving() as api, part(api, server) as informers:
            count = len(informers)
            await server.until(lambda: server.watching.total() >= count)
            for resource, body in after:
                server.put(resource, copy.deepcopy(body))
            for resource, body in GOOD.items():
                server.put(resource, copy.deepcopy(body))
            for informer in informers:
                await _has_last(informer, server)
    defects = [one for one in logs if one["log_level"] in {"error", "critical"} and one["event"] not in EXPECTED]
    assert defects == []


EXPECTED = {"order cannot be read", "no such adapter"}
"""What is told of one object, and left alone."""


async def _has_last(informer: Informer[Any], server: MoodyApiServer) -> None:
    resource = informer._watch.resource
    if resource not in GOOD:
        return
    metadata = GOOD[resource]["metadata"]
    stored = server.objects[resource.path(metadata.get("namespace"), metadata["name"])]
    seen = asyncio.Event()

    def heard(*_: Any) -> None:
        found = informer.get(metadata["name"], metadata.get("namespace", ""))
        if found is not None and int(found.metadata.resource_version) >= int(stored["metadata"]["resourceVersion"]):
            seen.set()

    informer.subscribe(heard)
    heard()
    async with asyncio.timeout(60):
        await seen.wait()


LISTS = st.lists(spoilt(), min_size=5, max_size=15)
fuzz = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@fuzz
@given(LISTS, LISTS)
def test_the_coordinator_and_its_adapters(before: Any, after: Any) -> None:
    asyncio.run(_outlives(coordinator, before, after))


@fuzz
@given(LISTS, LISTS)
def test_the_webhooks(before: Any, after: Any) -> None:
    asyncio.run(_outlives(webhooks, before, after))


@fuzz
@given(LISTS, LISTS)
def test_the_extender_of_volcano(before: Any, after: Any) -> None:
    asyncio.run(_outlives(extender, before, after))


@fuzz
@given(LISTS, LISTS)
def test_the_agent(before: Any, after: Any) -> None:
    asyncio.run(_outlives(agent, before, after))


@fuzz
@given(LISTS, LISTS)
def test_the_probe_of_storages(before: Any, after: Any) -> None:
    asyncio.run(_outlives(storages, before, after))


PARTS = [coordinator, webhooks, extender, agent, storages]


@pytest.mark.parametrize("part", PARTS)
def test_each_field_is_spoilt_in_each_way(part: Part) -> None:
    asyncio.run(_outlives(part, [], each_spoilt()))


def test_all_good_objects_are_read() -> None:
    """Else what is fuzzed would be refused at the border at once, and nothing behind it be tried."""

    async def _all(part: Part) -> None:
        server = MoodyApiServer()
        for resource, body in GOOD.items():
            server.put(resource, msgspec.json.decode(msgspec.json.encode(body)))
        with structlog.testing.capture_logs() as logs:
            async with server.serving() as api, part(api, server) as informers:
                assert all(len(informer) == 1 for informer in informers if informer._watch.resource in GOOD)
        assert [one for one in logs if one["event"] == "object cannot be read"] == []

    for part in PARTS:
        asyncio.run(_all(part))
