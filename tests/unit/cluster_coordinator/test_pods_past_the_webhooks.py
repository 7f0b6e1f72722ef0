"""A pod that no webhook has seen is told of, never a silent cold start, and saved when it is preempted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.coordinator.known import ById, KnownCheckpoint, _IdentitySpec, _PodSpec, _SnapshotName, _Spec
from cedana_sched.cluster.coordinator.known import _Status as Status
from cedana_sched.cluster.coordinator.unprepared import Unprepared
from cedana_sched.coordinator.core import Tell
from cedana_sched.kube import work_queue
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.kube.events import EventRecorder, Happening
from cedana_sched.kube.objects import Metadata, PartialObject, Pod
from cedana_sched.kube.reading import Unreadable
from cedana_sched.kube.resources import JOBS, PODS, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import HeldObject
from cedana_sched.model.records import CheckpointStep
from tests.unit.cluster_coordinator.filled_mirrors import filled

COMPLETION = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
FOREIGN = [
    ("leaderworkerset.sigs.k8s.io/v1", "LeaderWorkerSet", {
        "leaderworkerset.sigs.k8s.io/name": "md", "leaderworkerset.sigs.k8s.io/group-index": "1",
        "leaderworkerset.sigs.k8s.io/worker-index": "3",
    }),
    ("kubeflow.org/v1", "PyTorchJob", {
        "training.kubeflow.org/job-name": "md", "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "3",
    }),
    ("ray.io/v1", "RayCluster", {"ray.io/cluster": "md", "ray.io/group": "g", "ray.io/replica-host-index": "3"}),
    ("apps/v1", "StatefulSet", {"apps.kubernetes.io/pod-index": "3"}),
    ("batch.volcano.sh/v1alpha1", "Job", {
        "volcano.sh/job-name": "md", "volcano.sh/task-spec": "main", "volcano.sh/task-index": "3",
    }),
]  # fmt: skip
"""Pods as other controllers label them."""


def pod(
    *,
    labels: dict[str, str] | None = None,
    said: str | None = "md",
    namespace: str = "bio",
    annotations: dict[str, str] | None = None,
) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "md", "uid": "job-uid", "controller": True}
    env = [] if said is None else [{"name": "CEDANA_CHECKPOINT", "value": said}]
    return {
        "metadata": {
            "name": "md-0-x",
            "namespace": namespace,
            "uid": "pod-uid",
            "resourceVersion": "1",
            "labels": {JOB_NAME: "md"} if labels is None else labels,
            "annotations": annotations or {},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "env": env}]},
        "status": {"phase": "Running"},
    }


def snapshot(index: int, generation: int) -> KnownCheckpoint:
    spec = _Spec(_IdentitySpec("md", index), pod=_PodSpec("n1"))
    status = Status(CheckpointStep.READY, snapshot=_SnapshotName(generation, "md", index))
    return KnownCheckpoint(Metadata(name=f"c-{index}-{generation}", namespace="bio"), spec, status)


class World:
    """The API server, and who hears of what."""

    def __init__(self, body: Object, *snapshots: KnownCheckpoint, job: Object | None = None) -> None:
        self.body = body
        self.job = {"metadata": {"name": "md"}, "spec": {}} if job is None else job
        self.patches: list[Object] = []
        self.conflicts = 0
        self.told: list[Tell] = []
        self.events: list[Happening] = []
        self.left: list[Unreadable] = []
        by_id = ById(filled(*snapshots))
        self.unprepared = Unprepared(
            cast("Api", self),
            by_id,
            cast("EventRecorder", self),
            self.told.append,
            frozenset({"excluded"}),
            lambda annotations: annotations.get(names.QUEUE_POLICY),
        )

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        del namespace
        if resource == JOBS:
            return msgspec.convert(self.job, into)
        if resource != PODS or not self.body:
            raise AbsentError(name)
        return msgspec.convert(self.body, into)

    async def find(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        return await self.get(resource, name, namespace, into=into)

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Object) -> None:
        assert resource == PODS
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError(name, status=409)
        self.patches.append(patch)

    def tell(self, happening: Happening) -> None:
        self.events.append(happening)

    def unreadable(self, resource: Resource, one: Unreadable) -> None:
        del resource
        self.left.append(one)

    async def sees(self) -> Object | None:
        """What is written on the pod once it is seen."""
        task = asyncio.create_task(self.unprepared._preparing.run())
        for label, mirror in self.unprepared.unlabelled.items():
            if label in self.body["metadata"]["labels"]:  # as the API server selects them
                mirror._put(msgspec.convert(self.body, Pod))
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.patches[0]["metadata"] if self.patches else None


async def test_pod_of_an_opted_in_job_is_given_its_identity_and_that_is_said() -> None:
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}))
    written = await world.sees()
    assert written == {
        "uid": "pod-uid",
        "labels": {names.PROTECTED: "true"},
        "annotations": {names.ID: "md", names.INDEX: "3", names.PREPARED_LATE: "true"},
    }
    (told,) = world.told
    assert told.kind == "NotPrepared"
    assert told.held == HeldObject("batch/v1", "Job", "bio", "md", "job-uid")
    assert "created while no webhook answered; it is saved when it is preempted" in told.text


@pytest.mark.parametrize(("version", "kind", "labels"), FOREIGN)
async def test_pod_of_any_controller_is_given_its_identity(version: str, kind: str, labels: dict[str, str]) -> None:
    body = pod(labels=labels)
    body["metadata"]["ownerReferences"][0] |= {"apiVersion": version, "kind": kind}
    world = World(body)
    written = await world.sees()
    assert written is not None, "nobody watches it"
    assert (written["labels"], written["annotations"][names.INDEX]) == ({names.PROTECTED: "true"}, "3")
    (told,) = world.told
    assert told.kind == "NotPrepared"
    assert told.held is not None
    assert told.held.kind == kind


async def test_armada_pod_is_given_its_identity() -> None:
    written = await World(pod(labels={"armada_job_id": "01h"})).sees()
    assert written is not None
    assert written["annotations"] == {names.ID: "md", names.INDEX: "0", names.PREPARED_LATE: "true"}


async def test_pod_that_should_have_continued_says_so_with_its_snapshot() -> None:
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}), snapshot(3, 7), snapshot(4, 9))
    await world.sees()
    (told,) = world.told
    assert told.kind == "ColdStart"
    assert told.severity == "Warning"
    assert "without checkpoint md/3@7: no webhook answered" in told.text


async def test_one_of_several_alike_gets_a_number_of_its_own() -> None:
    world = World(pod(), snapshot(5, 2), job={"metadata": {"name": "md"}, "spec": {"parallelism": 3}})
    written = await world.sees()
    assert written is not None
    assert int(written["annotations"][names.INDEX]) > 5
    assert world.told[0].kind == "ColdStart", "some snapshot of the id was for it"


async def test_pod_of_a_protected_queue_has_its_id_in_an_annotation() -> None:
    written = await World(pod(said=None, annotations={names.ID: "md-1a2b", names.DERIVED: "true"})).sees()
    assert written is not None
    assert written["annotations"][names.ID] == "md-1a2b"


async def test_pod_has_its_queues_policy_as_if_a_webhook_had_seen_it() -> None:
    body = pod(
        labels={JOB_NAME: "md", COMPLETION: "3"}, annotations={names.POLICY: "own", names.QUEUE_POLICY: "theirs"}
    )
    written = await World(body).sees()
    assert written is not None
    assert written["annotations"][names.POLICY] == "theirs"


async def test_whoever_cannot_be_protected_is_refused_in_words() -> None:
    world = World(pod(said="no name"))
    written = await world.sees()
    assert written is not None
    assert written["labels"] == {names.PROTECTED: "false"}
    assert "'no name'" in written["annotations"][names.REFUSED]


async def test_an_id_that_comes_from_elsewhere_is_refused_in_words() -> None:
    body = pod()
    elsewhere = {"name": "CEDANA_CHECKPOINT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    body["spec"]["containers"].append({"name": "other", "env": [{"name": "A"}, elsewhere]})
    world = World(body)
    written = await world.sees()
    assert written is not None
    assert "valueFrom" in written["annotations"][names.REFUSED]


async def test_pods_that_cannot_be_read_are_told_of() -> None:
    world = World(pod())
    one = Unreadable(Metadata(name="md-0-x", namespace="bio"), "it is too large")
    for mirror in world.unprepared.unlabelled.values():
        mirror._leave(one)
    world.unprepared.refused._leave(one)
    assert world.left == [one] * (len(world.unprepared.unlabelled) + 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(said=None), id="nobody asked"),
        pytest.param(pod(said="", annotations={names.ID: "md"}), id="declined"),
        pytest.param(pod(namespace="excluded"), id="excluded"),
        pytest.param(pod(labels={"pod-template-hash": "x"}), id="a Deployment's"),
        pytest.param(pod(labels={"app": "md"}), id="a bare one"),
    ],
)
async def test_others_are_left_alone(body: Object) -> None:
    world = World(body)
    assert await world.sees() is None
    assert world.told == []


def test_pod_with_the_labels_of_many_controllers_is_kept_once() -> None:
    """Whoever may create pods would else multiply what the coordinator keeps of them."""
    unlabelled = World(pod()).unprepared.unlabelled
    selectors = [mirror._watch._query["labelSelector"].split(",") for mirror in unlabelled.values()]
    for labels in ({label} for label in unlabelled):
        assert sum(_selects(selector, labels) for selector in selectors) == 1
    for labels in (set(unlabelled), set(list(unlabelled)[2:])):
        assert sum(_selects(selector, labels) for selector in selectors) == 1
        assert not any(_selects(selector, labels | {names.PROTECTED}) for selector in selectors)


def _selects(selector: list[str], labels: set[str]) -> bool:
    return all(term[1:] not in labels if term.startswith("!") else term in labels for term in selector)


async def test_pod_that_is_another_one_by_now_is_left_alone() -> None:
    world = World(pod())
    seen = msgspec.convert(world.body, Pod)
    world.body["metadata"]["uid"] = "another"
    task = asyncio.create_task(world.unprepared._preparing.run())
    world.unprepared.unlabelled[JOB_NAME]._put(seen)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.patches == []


async def test_conflict_with_another_writer_of_the_pod_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "FIRST_PAUSE_SECONDS", 0.0)
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}))
    world.conflicts = 2
    assert await world.sees() is not None, "it is not protected, and nobody says so"
    assert len(world.told) == 1


def test_who_was_refused_by_a_webhook_is_told_of_on_the_pod_and_its_owner() -> None:
    body = pod(labels={JOB_NAME: "md", names.PROTECTED: "false"}, annotations={names.REFUSED: "it has no number"})
    world = World(body)
    world.unprepared.refused._put(msgspec.convert(body, PartialObject))
    assert [one.involved["kind"] for one in world.events] == ["Pod", "Job"]
    assert all(one.warning and one.reason == "NotProtected" for one in world.events)
    assert world.events[0].message == "md-0-x is not protected: it has no number"
