"""What is kept of an object that a tenant writes does not grow with it, and neither does what its reading takes."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import CHECKPOINTS, JOBS, PODS, Resource
from cedana_sched.kube.response_decoding import Unreadable, read
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import SCHEMES
from cedana_sched_kueue.managed_objects import ManagedObject
from cedana_sched_kueue.objects import WORKLOADS, Workload
from cedana_sched_volcano.extender.free_resources import Occupant
from cedana_sched_volcano.nomination_removal import NominatedPod
from cedana_sched_volcano.objects import POD_GROUPS, PodGroup
from tests.unit.kube.served_api import served

MANY = 24_000
MIB = 1 << 20
MOST_KEPT = MIB // 4
"""Bytes of memory; a pod that somebody means takes a few KiB."""

ENV = [{"name": "A"}] * MANY
NAMED = {f"l{number}": "" for number in range(MANY)}
OWNER = {"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}
FILLERS: dict[str, dict[str, Any]] = {
    "env": {"spec": {"containers": [{"name": "m", "env": ENV}]}},
    "env of init containers": {"spec": {"initContainers": [{"name": "m", "env": ENV}]}},
    "containers": {"spec": {"containers": [{"name": "m"}] * MANY}},
    "gates": {"spec": {"schedulingGates": [{"name": "t/never"}] * MANY}},
    "scheduler": {"spec": {"schedulerName": "x" * MIB}},
    "variable": {"spec": {"containers": [{"name": "m", "env": [{"name": CHECKPOINT_VARIABLE, "value": "x" * MIB}]}]}},
    "labels": {"metadata": {"labels": NAMED}},
    "annotations": {"metadata": {"annotations": NAMED}},
    "annotation of ours": {"metadata": {"annotations": {names.ID: "x" * MIB}}},
    "finalizers": {"metadata": {"finalizers": ["example.com/a"] * MANY}},
    "owners": {"metadata": {"ownerReferences": [OWNER] * (MANY // 4)}},
    "owner's name": {"metadata": {"ownerReferences": [{**OWNER, "name": "x" * MIB, "controller": True}]}},
    "conditions": {"status": {"conditions": [{"type": "T", "status": "U"}] * MANY}},
    "requests": {"spec": {"containers": [{"name": "m", "resources": {"requests": NAMED}}]}},
    "template": {"spec": {"template": {"spec": {"containers": [{"name": "m", "env": ENV}]}}}},
    "template's annotations": {"spec": {"template": {"metadata": {"annotations": NAMED}}}},
    "pod sets": {"spec": {"podSets": [{"name": "m"}] * MANY}},
}
KINDS: list[tuple[Resource, type[Any]]] = [
    (PODS, Pod),
    (PODS, PartialObject),
    (PODS, Occupant),
    (PODS, NominatedPod),
    (JOBS, ManagedObject),
    (WORKLOADS, Workload),
    (POD_GROUPS, PodGroup),
]


def _object(filler: dict[str, Any], name: str = "p") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "t", "uid": f"u-{name}", "resourceVersion": "1"}
    return {**filler, "metadata": {**metadata, **filler.get("metadata", {})}}


@pytest.fixture
def measured() -> Iterator[None]:
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize(("resource", "into"), KINDS, ids=lambda one: getattr(one, "__name__", one.__class__.__name__))
@pytest.mark.usefixtures("measured")
def test_what_is_kept_of_an_object_is_bounded(resource: Resource, into: type[Any], filler: str) -> None:
    body = msgspec.json.encode(_object(FILLERS[filler]))
    assert len(body) > MOST_KEPT
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    kept = read(resource, body, into)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    assert kept.metadata.name == "p"
    assert after - before < MOST_KEPT


@pytest.mark.parametrize(
    ("filler", "field"),
    [
        ("containers", "spec.containers"),
        ("scheduler", "spec.schedulerName"),
        ("annotation of ours", "metadata.annotations"),
        ("finalizers", "metadata.finalizers"),
    ],
)
def test_an_object_of_which_too_much_would_be_kept_names_the_field(filler: str, field: str) -> None:
    found = read(PODS, msgspec.json.encode(_object(FILLERS[filler])), Pod)
    assert isinstance(found, Unreadable)
    assert field in found.problem
    assert (found.metadata.namespace, found.metadata.name, found.metadata.uid) == ("t", "p", "u-p")


def test_an_object_that_is_larger_than_any_that_is_meant_is_not_read_and_names_the_field() -> None:
    body = msgspec.json.encode(_object({"spec": {"nodeName": "n", "tolerations": [{}] * 900_000}}))
    found = read(PODS, body, Pod)
    assert isinstance(found, Unreadable)
    assert "spec.tolerations" in found.problem
    assert found.metadata.resource_version == "1"


def test_objects_of_our_own_kinds_may_be_as_large_as_the_api_server_takes_them() -> None:
    body = msgspec.json.encode(_object({"metadata": {"finalizers": ["x" * 1000] * 2_000}}))
    found = read(CHECKPOINTS, body, PartialObject)
    assert not isinstance(found, Unreadable)
    assert len(found.metadata.finalizers) == 2_000


def test_labels_and_annotations_that_somebody_reads_are_kept_and_no_others() -> None:
    schemes = {
        key
        for one in SCHEMES
        for key in (one.pods, *one.index, *(label for labels in one.role for label in labels), *(one.only or ())[:1])
        if key
    }
    ours = {
        names.ID,
        names.INDEX,
        names.EVICTION_REQUESTED,
        names.PROTECTED,
        names.PRESTOP_TOKEN,
        names.NODE_FACTS,
        names.RELEASED_HOLD,
    }
    texts = dict.fromkeys((*schemes, *ours, "kubectl.kubernetes.io/last-applied-configuration"), "x")
    metadata = Metadata(labels=texts, annotations=texts)
    assert metadata.labels.keys() == metadata.annotations.keys() == schemes | ours


@pytest.mark.parametrize(
    ("env", "kept"),
    [
        ([("A", "b"), (CHECKPOINT_VARIABLE, "first"), (CHECKPOINT_VARIABLE, "last"), ("B", "c")], ["last"]),
        ([(CHECKPOINT_VARIABLE, "first"), (CHECKPOINT_VARIABLE, "")], [""]),
        ([("A", "b")], []),
    ],
)
def test_of_a_container_s_variables_the_one_that_counts_is_kept(env: list[tuple[str, str]], kept: list[str]) -> None:
    container = {"name": "m", "env": [{"name": name, "value": value} for name, value in env]}
    pod = msgspec.convert({"metadata": {}, "spec": {"containers": [container]}}, Pod)
    assert [one.value for one in pod.spec.containers[0].env] == kept


def test_a_controller_may_say_a_lot_in_its_conditions_and_is_read() -> None:
    conditions = [{"type": kind, "status": "True", "message": "x" * 32_768} for kind in "ABCDEF"]
    checks = [{"name": "c", "message": "x" * 32_768}]
    filler = {"status": {"conditions": conditions, "admissionChecks": checks}}
    found = read(WORKLOADS, msgspec.json.encode(_object(filler)), Workload)
    assert not isinstance(found, Unreadable)
    assert found.find_true_condition("A") is not None


class _Pages:
    """An API server with many large pods, which makes each only when it is written. It keeps to `limit`."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.limits: list[int] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if "watch" in request.query:
            await asyncio.Event().wait()
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        self.limits.append(limit)
        end = min(begin + limit, len(self.sizes))
        more = str(end) if end < len(self.sizes) else ""
        await response.write(b'{"metadata":{"resourceVersion":"100","continue":"%s"},"items":[' % more.encode())
        try:
            for number in range(begin, end):
                filler = {"spec": {"tolerations": [{"key": "x" * self.sizes[number]}]}}
                separator = b"," if number > begin else b""
                await response.write(separator + msgspec.json.encode(_object(filler, f"p{number}")))
            await response.write(b"]}")
        except ConnectionError:
            pass
        return response

    def serving(self) -> AbstractAsyncContextManager[Api]:
        return served({"/api/v1/pods": self.answer})


async def _mirrored(server: _Pages) -> tuple[Informer[Pod], list[Unreadable]]:
    unreadable: list[Unreadable] = []
    async with server.serving() as api:
        informer = Informer(Watch(api, PODS, Pod), lambda _, one: unreadable.append(one))
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            await informer.synced.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return informer, unreadable


@pytest.mark.usefixtures("measured")
async def test_a_list_of_large_objects_is_never_in_memory_as_a_whole() -> None:
    server = _Pages([100, 200] + [2_500_000] * 60 + [100] * 40)
    informer, unreadable = await _mirrored(server)
    _, most = tracemalloc.get_traced_memory()
    assert sorted(int(pod.metadata.name[1:]) for pod in informer) == [0, 1, *range(62, 102)]
    assert [one.metadata.name for one in unreadable] == [f"p{number}" for number in range(2, 62)]
    assert all("spec.tolerations" in one.problem for one in unreadable)
    assert most < sum(server.sizes) / 2


async def test_pages_grow_again_behind_large_objects() -> None:
    server = _Pages([100] + [3_000_000] * 4 + [100] * 2_000)
    informer, _ = await _mirrored(server)
    assert len(informer) == 2_001
    assert len(server.limits) < 40
    assert server.limits[-1] > 200
