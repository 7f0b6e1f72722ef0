"""Whether a deleted pod has a successor, controller by controller."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import JOBS, NAMESPACES, PODS
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched_kubernetes import successors as successors_module
from cedana_sched_kubernetes.objects import REPLICA_SETS, STATEFUL_SETS
from cedana_sched_kubernetes.remaining_pod_counts import RemainingPodCounts
from cedana_sched_kubernetes.successors import Successors

NAMESPACE = "bio"
DELETED = "2026-05-01T12:10:30Z"
"""With a grace of 630 s: at 12:00:00."""
KINDS = {"Job": "batch/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "PyTorchJob": "kubeflow.org/v1"}


def deleted_pod(kind: str | None, name: str = "md-1", **labels: str) -> Pod:
    owner = () if kind is None else (OwnerReference(KINDS[kind], kind, "md", "owner-uid", controller=True),)
    metadata = Metadata(
        name, NAMESPACE, "pod-uid", labels=labels, owner_references=owner,
        deletion_timestamp=DELETED, deletion_grace_period_seconds=630,
    )  # fmt: skip
    return Pod(metadata)


def owner(uid: str = "owner-uid", *, deleted: bool = False, **fields: Any) -> Object:
    ends = {"deletionTimestamp": DELETED} if deleted else {}
    return {"metadata": {"name": "md", "namespace": NAMESPACE, "uid": uid, **ends}, **fields}


async def has_successor(api: FakeApi, pod: Pod, *protected: Object) -> bool:
    siblings = RemainingPodCounts()
    for one in protected:
        siblings.on_pod_change(None, msgspec.convert(one, Pod))
    return await Successors(api, siblings).has_successor(pod)


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.put(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    return api


def ended(kind: str) -> Object:
    return {"conditions": [{"type": kind, "status": "True"}]}


@pytest.mark.parametrize(
    ("job", "is_continued"),
    [
        (owner(), True),
        (owner(spec={"suspend": True}), True),
        (owner(deleted=True), False),
        (owner(uid="another"), False),
        (owner(status=ended("Complete")), False),
        (owner(status=ended("FailureTarget")), False),
        (owner(status=ended("Suspended")), True),
        (None, False),
    ],
)
async def test_pod_of_a_job_has_one_while_the_job_goes_on(api: FakeApi, job: Object | None, is_continued: bool) -> None:
    if job is not None:
        api.put(JOBS, job)
    assert await has_successor(api, deleted_pod("Job")) is is_continued


def sibling(name: str, *, at: str = "2026-05-01T11:00:00Z", deleted: bool = False, of: str = "owner-uid") -> Object:
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "md", "uid": of, "controller": True}
    ends = {"deletionTimestamp": DELETED} if deleted else {}
    metadata = {"name": name, "namespace": NAMESPACE, "creationTimestamp": at, "ownerReferences": [reference], **ends}
    return {"metadata": {**metadata, "labels": {"app": "md"}}, "status": {"phase": "Running"}}


def protected(body: Object) -> Object:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "labels": {**metadata["labels"], names.PROTECTED: "true"}}}


@pytest.mark.parametrize("is_protected", [True, False])
@pytest.mark.parametrize(
    ("replicas", "others", "is_missing"),
    [
        (1, [], True),
        (0, [], False),
        (2, [sibling("md-2")], True),
        (1, [sibling("md-2")], False),
        (1, [sibling("md-2", at="2026-05-01T12:00:00Z")], True),
        (1, [sibling("md-2", deleted=True)], True),
        (1, [sibling("md-2", of="another")], True),
    ],
    ids=["alone", "scaled to none", "one of two", "scaled to one", "replaced already", "both deleted", "another's"],
)
async def test_pod_of_a_replica_set_has_one_if_the_set_wants_more(
    api: FakeApi, replicas: int, others: list[Object], is_missing: bool, is_protected: bool
) -> None:
    api.put(REPLICA_SETS, owner(spec={"replicas": replicas, "selector": {"matchLabels": {"app": "md"}}}))
    for one in others:
        api.put(PODS, protected(one) if is_protected else one)
    counted = others if is_protected else []
    assert await has_successor(api, deleted_pod("ReplicaSet"), *counted) is is_missing


async def test_protected_and_other_pods_of_a_replica_set_count_together(api: FakeApi) -> None:
    api.put(REPLICA_SETS, owner(spec={"replicas": 2, "selector": {"matchLabels": {"app": "md"}}}))
    api.put(PODS, sibling("md-3"))
    assert await has_successor(api, deleted_pod("ReplicaSet"))
    assert not await has_successor(api, deleted_pod("ReplicaSet"), sibling("md-2"))


async def test_pods_of_a_replica_set_that_are_deleted_at_once_are_not_listed_for_each_of_them(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    siblings, size = RemainingPodCounts(), 200
    api.put(REPLICA_SETS, owner(spec={"replicas": size + 1, "selector": {"matchLabels": {"app": "md"}}}))
    for number in range(size):
        body = protected(sibling(f"md-{number}"))
        api.put(PODS, body)
        siblings.on_pod_change(None, msgspec.convert(body, Pod))
    successors = Successors(api, siblings)
    list_each = api.list_each
    listed: list[object] = []

    async def list_counted(*arguments: Any, **named: Any) -> str:
        listed.append(arguments)
        return await list_each(*arguments, **named)

    monkeypatch.setattr(api, "list_each", list_counted)
    for _ in range(size):
        assert await successors.has_successor(deleted_pod("ReplicaSet"))
    assert len(listed) == 1


async def test_pods_that_take_too_long_to_be_read_do_not_count(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of large ones: the deletions of other tenants' pods wait meanwhile, 30 s at most."""
    api.put(REPLICA_SETS, owner(spec={"replicas": 2, "selector": {"matchLabels": {"app": "md"}}}))
    metadata_only: list[bool] = []

    async def list_for_ever(*_: Any, only_metadata: bool = False) -> str:
        metadata_only.append(only_metadata)
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(api, "list_each", list_for_ever)
    monkeypatch.setattr(successors_module, "READ_SECONDS", 0.01, raising=False)
    async with asyncio.timeout(60):
        assert await has_successor(api, deleted_pod("ReplicaSet"), sibling("md-2"))
        assert not await has_successor(api, deleted_pod("ReplicaSet"), sibling("md-2"), sibling("md-3"))
    assert metadata_only == [True]


@pytest.mark.parametrize(
    ("spec", "revision", "is_wanted"),
    [
        ({"replicas": 2}, "md-a", True),
        ({"replicas": 1}, "md-a", False),
        ({"replicas": 1, "ordinals": {"start": 1}}, "md-a", True),
        ({"replicas": 2}, "md-b", False),
        ({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 2}}}, "md-b", True),
        ({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}}, "md-b", False),
    ],
    ids=["wanted", "scaled down", "first is 1", "rolled out", "below the partition", "in the partition"],
)
async def test_pod_of_a_stateful_set_has_one_of_its_ordinal_and_template(
    api: FakeApi, spec: Object, revision: str, is_wanted: bool
) -> None:
    api.put(STATEFUL_SETS, owner(spec=spec, status={"updateRevision": revision, "currentRevision": "md-a"}))
    pod = deleted_pod("StatefulSet", **{"controller-revision-hash": "md-a"})
    assert await has_successor(api, pod) is is_wanted


async def test_pod_of_an_unknown_controller_has_one(api: FakeApi) -> None:
    assert await has_successor(api, deleted_pod("PyTorchJob"))


async def test_pod_without_a_controller_has_none(api: FakeApi) -> None:
    assert not await has_successor(api, deleted_pod(None))


async def test_nothing_has_a_successor_in_a_namespace_that_is_deleted(api: FakeApi) -> None:
    api.put(JOBS, owner())
    api.put(NAMESPACES, {"metadata": {"name": NAMESPACE, "deletionTimestamp": DELETED}})
    assert not await has_successor(api, deleted_pod("Job"))
