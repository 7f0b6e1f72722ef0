"""A pod that no webhook has seen is told of, never a silent cold start, and saved when it is preempted."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.adapter.cluster_contract import OptedInSink, OptingIn
from cedana_sched.cluster.coordinator import pods_missed_by_webhook
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.pods_missed_by_webhook import PodsMissedByWebhook
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError, ConflictError, decoded
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint, KnownSpec, KnownStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef, SnapshotName
from cedana_sched.kube.resources import JOBS, PODS, Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import REVISION
from cedana_sched.model.preemption import HeldObject
from cedana_sched.model.records import CheckpointStep
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission
from cedana_sched_webhooks.admission import Request
from cedana_sched_webhooks.admission_types import MIRROR
from cedana_sched_webhooks.pod_mutations import LONGEST_REASON, WRITTEN_LATER
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.webhooks.admission_builders import configuration, knowledge

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
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
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "md", "uid": "job-uid", "controller": True}
DEPLOYED = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "md-5f", "uid": "set-uid", "controller": True}
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "md", "uid": "daemon-uid", "controller": True}


def pod(
    *,
    labels: dict[str, str] | None = None,
    said: str | None = "md",
    namespace: str = "bio",
    annotations: dict[str, str] | None = None,
    owner: Object | None = JOB,
) -> Object:
    env = [] if said is None else [{"name": "CEDANA_CHECKPOINT", "value": said}]
    return {
        "metadata": {
            "name": "md-0-x",
            "namespace": namespace,
            "uid": "pod-uid",
            "resourceVersion": "1",
            "labels": {JOB_NAME: "md"} if labels is None else labels,
            "annotations": annotations or {},
            "ownerReferences": [] if owner is None else [dict(owner)],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "env": env}]},
        "status": {"phase": "Running"},
    }


def snapshot(index: int, generation: int) -> KnownCheckpoint:
    spec = KnownSpec(IdentitySpec("md", index), pod_ref=PodRef(node_name="n1"))
    status = KnownStatus(step=CheckpointStep.READY, snapshot=SnapshotName(generation, "md", index))
    return KnownCheckpoint(Metadata(name=f"c-{index}-{generation}", namespace="bio"), spec, status)


class World:
    """The API server, and who hears of what."""

    def __init__(
        self, body: Object, *snapshots: KnownCheckpoint, job: Object | None = None, queues: tuple[OptingIn, ...] = ()
    ) -> None:
        self.body = body
        self.read = 0
        self.job = {"metadata": {"name": "md"}, "spec": {}} if job is None else job
        self.patches: list[Object] = []
        self.conflicts = self.lost_answers = 0
        self.told: list[PublishEvent] = []
        self.events: list[ObjectEvent] = []
        self.left: list[Unreadable] = []
        by_id = CheckpointsById(filled(*snapshots))
        self.unprepared = PodsMissedByWebhook(
            cast("Api", self),
            by_id,
            cast("EventRecorder", self),
            self.told.append,
            ServedNamespaces(frozenset({"excluded"})),
            lambda annotations: annotations.get(names.QUEUE_POLICY),
            queues,
            lambda: NOW,
        )

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        del namespace
        if resource == JOBS:
            return msgspec.convert(self.job, into)
        if resource != PODS or not self.body:
            raise AbsentError(name)
        self.read += 1
        return decoded("GET", msgspec.json.encode(self.body), into)

    async def find(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        return await self.get(resource, name, namespace, into=into)

    async def patch(
        self, resource: Resource, name: str, namespace: str, patch: Object, *, subresource: str | None = None
    ) -> None:
        assert (resource, subresource) == (PODS, None)
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError(name, status=409)
        self.patches.append(patch)
        if self.lost_answers:
            self.lost_answers -= 1
            self.body["metadata"]["annotations"] |= patch["metadata"]["annotations"]
            self.body["metadata"]["labels"] |= patch["metadata"]["labels"]
            self.unprepared.unlabelled._drop(msgspec.convert(self.body, PartialObject))
            raise ApiUnavailableError(name)

    def record_event(self, event: ObjectEvent) -> None:
        self.events.append(event)

    def record_unreadable(self, resource: Resource, one: Unreadable) -> None:
        del resource
        self.left.append(one)

    async def sees(self) -> Object | None:
        """What is written on the pod once it is seen."""
        async with self.looking():
            self.shows(self.body)
        return self.patches[0]["metadata"] if self.patches else None

    def shows(self, body: Object) -> None:
        """The API server tells of a pod without our label."""
        self.unprepared.unlabelled._put(msgspec.convert({"metadata": body["metadata"]}, PartialObject))

    def shows_refused(self) -> None:
        """The API server tells of a pod that is not protected."""
        self.unprepared.refused._put(msgspec.convert({"metadata": self.body["metadata"]}, PartialObject))

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Whatever is shown in the block is looked at."""
        task = asyncio.create_task(self.unprepared._looking.run())
        yield
        for _ in range(200):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pod_of_an_opted_in_job_is_given_its_identity_and_that_is_said() -> None:
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}))
    written = await world.sees()
    assert written == {
        "uid": "pod-uid",
        "labels": {names.PROTECTED: "true"},
        "annotations": {names.ID: "md", names.INDEX: "3", names.MISSED_BY_WEBHOOK: "true"},
    }
    (told,) = world.told
    assert told.kind == "MissedByWebhook"
    assert told.held == HeldObject("batch/v1", "Job", "bio", "md", "job-uid")
    assert told.text == (
        "md-0-x was created while no webhook answered; it is saved where a webhook can refuse its eviction, but its"
        " deletion is not held. To have it prepared, delete it: its Job creates another one, and counts a failure"
    )


@pytest.mark.parametrize(("version", "kind", "labels"), FOREIGN)
async def test_pod_of_any_controller_is_given_its_identity(version: str, kind: str, labels: dict[str, str]) -> None:
    body = pod(labels=labels)
    body["metadata"]["ownerReferences"][0] |= {"apiVersion": version, "kind": kind}
    world = World(body)
    written = await world.sees()
    assert written is not None, "nobody watches it"
    assert (written["labels"], written["annotations"][names.INDEX]) == ({names.PROTECTED: "true"}, "3")
    (told,) = world.told
    assert told.kind == "MissedByWebhook"
    assert told.held is not None
    assert told.held.kind == kind


@pytest.mark.parametrize(
    ("owner", "remedy"),
    [
        pytest.param(DEPLOYED, "delete it: its ReplicaSet creates another one", id="a Deployment's"),
        pytest.param(None, "delete it and create it again", id="a bare one"),
    ],
)
async def test_pod_that_no_label_tells_from_strangers_is_found_too(owner: Object | None, remedy: str) -> None:
    world = World(pod(labels={"app": "md"}, owner=owner))
    written = await world.sees()
    assert written is not None, "nobody finds it"
    assert written["labels"] == {names.PROTECTED: "true"}
    assert written["annotations"][names.ID] == "md"
    (told,) = world.told
    assert told.kind == "MissedByWebhook"
    assert (told.held is None) == (owner is None)
    assert told.text.endswith(f". To have it prepared, {remedy}")


async def test_pods_of_one_deployment_are_told_apart() -> None:
    world = World(pod(labels={"app": "md"}, owner=DEPLOYED), snapshot(5, 2))
    written = await world.sees()
    assert written is not None
    assert int(written["annotations"][names.INDEX]) > 5
    assert "go back to the checkpoint, delete it" in world.told[0].text


async def test_pod_whose_controller_numbers_nobody_is_refused_in_words() -> None:
    written = await World(pod(labels={"app": "md"}, owner=DAEMON)).sees()
    assert written is not None
    assert written["labels"] == {names.PROTECTED: "false"}
    assert "has labelled no pod with its number" in written["annotations"][names.NOT_PROTECTED]


class Queues:
    """A scheduler whose queues begin to protect their pods."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.more: OptedInSink = lambda _: None

    def opt_in_annotations(self, pod: Object) -> Mapping[str, str]:
        assert pod["metadata"]["name"] == "md-0-x"
        return self.given

    def on_more_opted_in(self, sink: OptedInSink) -> None:
        self.more = sink


BY_QUEUE = {names.ID: "md-1a2b", names.DERIVED_ID: "true", names.POLICY: "fast"}


async def test_pod_gets_what_its_queue_would_have_given_it() -> None:
    world = World(pod(said=None, labels={JOB_NAME: "md", COMPLETION: "3"}), queues=(Queues({}), Queues(BY_QUEUE)))
    written = await world.sees()
    assert written is not None
    assert written["annotations"] == BY_QUEUE | {names.INDEX: "3", names.MISSED_BY_WEBHOOK: "true"}
    assert "no webhook answered, or its queue did not protect its pods yet; it is saved" in world.told[0].text


async def test_pod_that_names_an_id_keeps_it_in_any_queue() -> None:
    written = await World(pod(), queues=(Queues(BY_QUEUE),)).sees()
    assert written is not None
    assert written["annotations"][names.ID] == "md"
    assert names.DERIVED_ID not in written["annotations"]


async def test_pod_that_names_an_id_has_the_policy_of_its_queue() -> None:
    given = Queues({names.QUEUE_POLICY: "theirs"})
    body = pod(
        labels={JOB_NAME: "md", COMPLETION: "3"}, annotations={names.POLICY: "own", names.QUEUE_POLICY: "forged"}
    )
    written = await World(body, queues=(given,)).sees()
    assert written is not None
    assert written["annotations"][names.POLICY] == written["annotations"][names.QUEUE_POLICY] == "theirs"


async def test_pod_that_declines_is_not_protected_by_its_queues_policy() -> None:
    assert await World(pod(said=None), queues=(Queues({names.QUEUE_POLICY: "theirs"}),)).sees() is None


@pytest.mark.parametrize(
    ("said", "annotated"), list(itertools.product((None, "", "md", "no name"), (None, "", "other", "no name")))
)
async def test_who_asks_for_protection_is_who_the_webhook_protects(said: str | None, annotated: str | None) -> None:
    body = pod(said=said, annotations={} if annotated is None else {names.ID: annotated})
    written, prepared = (
        await World(copy.deepcopy(body)).sees(),
        pod_admission.admit_pod(Request("r", "bio", object=copy.deepcopy(body)), knowledge(), configuration()),
    )
    after = apply_json_patch(body, prepared.patch)["metadata"]
    expected = (after["labels"].get(names.PROTECTED), after["annotations"].get(names.ID))
    if expected[0] is None:
        assert written is None
    else:
        assert written is not None
        assert (
            written["labels"][names.PROTECTED],
            (body["metadata"]["annotations"] | written["annotations"]).get(names.ID),
        ) == expected


@pytest.mark.parametrize("namespaces", [["bio"], [None], ["lab", "bio"]])
async def test_pod_whose_queue_is_heard_of_after_it_is_looked_at_again(namespaces: list[str | None]) -> None:
    queues = Queues({})
    world = World(pod(said=None), queues=(queues,))
    assert await world.sees() is None
    async with world.looking():
        queues.given = BY_QUEUE
        for namespace in namespaces:
            queues.more(namespace)
    (patch,) = world.patches
    assert patch["metadata"]["annotations"][names.ID] == "md-1a2b"


async def test_pods_of_other_namespaces_are_not_looked_at_again() -> None:
    """Whoever may write the labels of one namespace causes no reads of others' pods."""
    queues = Queues({})
    world = World(pod(said=None), queues=(queues,))
    assert await world.sees() is None
    read = world.read
    async with world.looking():
        queues.more("lab")
    assert world.read == read


@pytest.mark.parametrize(
    ("owner", "revision", "reads"),
    [
        pytest.param(DEPLOYED, "", 1, id="a ReplicaSet's are alike"),
        pytest.param(DAEMON, "new", 2, id="not where its template was changed"),
        pytest.param(DEPLOYED | {"kind": "Workflow"}, "", 2, id="nor where nobody knows"),
        pytest.param(None, "", 2, id="nor without a controller"),
    ],
)
async def test_of_strangers_as_few_as_possible_are_read(owner: Object | None, revision: str, reads: int) -> None:
    world = World(pod(said=None, owner=owner))
    assert await world.sees() is None
    other = pod(said=None, owner=owner, labels={REVISION: revision} if revision else None)
    other["metadata"] |= {"name": "md-1-y", "uid": "other-uid"}
    world.body = other
    async with world.looking():
        world.shows(other)
        world.shows(other | {"metadata": other["metadata"] | {"resourceVersion": "2"}})
    assert world.read == reads


@pytest.mark.parametrize("change", [{"namespace": "lab"}, {"annotations": {names.ID: "md"}}])
async def test_what_one_stranger_says_of_his_template_hides_no_other_pod(change: Object) -> None:
    """Whoever writes a pod may name any controller."""
    world = World(pod(said=None, owner=DEPLOYED))
    assert await world.sees() is None
    world.body = pod(said=None if "annotations" in change else "md", owner=DEPLOYED)
    world.body["metadata"] |= {"name": "md-1-y", "uid": "other-uid"} | change
    async with world.looking():
        world.shows(world.body)
    assert len(world.patches) == 1


async def test_templates_of_strangers_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_missed_by_webhook, "MOST_TEMPLATES", 3)
    world = World(pod(said=None, owner=DEPLOYED))
    for number in range(5):
        world.body["metadata"]["name"] = f"md-{number}"
        world.body["metadata"]["ownerReferences"][0]["uid"] = f"set-{number}"
        await world.sees()
    assert [uid for _, uid, _ in world.unprepared._strangers] == ["set-2", "set-3", "set-4"]


def test_strangers_are_watched_by_their_metadata_alone() -> None:
    looks = World(pod()).unprepared
    for informer in (looks.unlabelled, looks.refused):
        assert informer._watch._only_metadata
        assert informer._watch._query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_what_only_ours_may_say_of_a_pod_is_taken_off_its_template() -> None:
    """A uid of another namespace, which no record of the pod could be written with, is one of these."""
    forged = dict.fromkeys({*WRITTEN_LATER} - {names.MISSED_BY_WEBHOOK}, "forged")
    written = await World(pod(annotations={names.ID: "md"} | forged)).sees()
    assert written is not None
    assert {key: written["annotations"].get(key, "kept") for key in forged} == dict.fromkeys(forged)


async def test_armada_pod_is_given_its_identity() -> None:
    written = await World(pod(labels={"armada_job_id": "01h"})).sees()
    assert written is not None
    assert written["annotations"] == {names.ID: "md", names.INDEX: "0", names.MISSED_BY_WEBHOOK: "true"}


async def test_pod_that_should_have_continued_says_so_with_its_snapshot() -> None:
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}), snapshot(3, 7), snapshot(4, 9))
    await world.sees()
    (told,) = world.told
    assert told.kind == "ColdStart"
    assert told.severity == "Warning"
    assert "without checkpoint md/3@7, which was there: no webhook answered" in told.text


async def test_pod_whose_snapshot_is_still_being_made_says_so() -> None:
    flying = KnownCheckpoint(
        Metadata("c", "bio"), KnownSpec(IdentitySpec("md", 3)), KnownStatus(step=CheckpointStep.DUMPING)
    )
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}), snapshot(3, 7), flying)
    await world.sees()
    (told,) = world.told
    assert told.kind == "ColdStart"
    assert "without checkpoint md/3, which is still being made: no webhook answered" in told.text


async def test_one_of_several_alike_gets_a_number_of_its_own() -> None:
    world = World(pod(), snapshot(5, 2), job={"metadata": {"name": "md"}, "spec": {"parallelism": 3}})
    written = await world.sees()
    assert written is not None
    assert int(written["annotations"][names.INDEX]) > 5
    assert world.told[0].kind == "ColdStart", "some snapshot of the id was for it"


async def test_pod_of_a_protected_queue_has_its_id_in_an_annotation() -> None:
    written = await World(pod(said=None, annotations={names.ID: "md-1a2b", names.DERIVED_ID: "true"})).sees()
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
    assert "'no name'" in written["annotations"][names.NOT_PROTECTED]


async def test_a_refusal_that_quotes_a_long_text_is_cut() -> None:
    written = await World(pod(said="no name" * 5_000)).sees()
    assert written is not None
    assert len(written["annotations"][names.NOT_PROTECTED]) == LONGEST_REASON


async def test_an_id_that_comes_from_elsewhere_is_refused_in_words() -> None:
    body = pod()
    elsewhere = {"name": "CEDANA_CHECKPOINT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    body["spec"]["containers"].append({"name": "other", "env": [{"name": "A"}, elsewhere]})
    world = World(body)
    written = await world.sees()
    assert written is not None
    assert "valueFrom" in written["annotations"][names.NOT_PROTECTED]


async def test_pods_that_cannot_be_read_are_told_of() -> None:
    world = World(pod())
    one = Unreadable(Metadata(name="md-0-x", namespace="bio"), "it is too large")
    for informer in (world.unprepared.unlabelled, world.unprepared.refused):
        informer._keep_last_version(one)
    assert world.left == [one, one]


async def test_one_whose_metadata_alone_can_be_read_is_told_of_and_not_tried_for_ever() -> None:
    world = World(pod())
    world.body["spec"]["containers"] = 7
    assert await world.sees() is None
    assert [one.metadata.uid for one in world.left] == ["pod-uid"]
    assert world.read == 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(said=None), id="nobody asked"),
        pytest.param(pod(said=""), id="declined"),
        pytest.param(pod(said=None, annotations={names.ID: ""}), id="an empty id"),
        pytest.param(pod(labels={names.PROTECTED: "true"}), id="prepared"),
        pytest.param(pod(annotations={MIRROR: "x"}), id="a kubelet's own"),
        pytest.param(pod(annotations={names.PRESTOP_TOKEN: "x"}), id="prepared, and its label was removed"),
        pytest.param(pod(annotations={names.MISSED_BY_WEBHOOK: "true"}), id="prepared late, and its label was removed"),
        pytest.param(pod(said=None, owner=DEPLOYED), id="a Deployment's that asks for nothing"),
        pytest.param(pod(said=None, owner=None), id="a bare one that asks for nothing"),
    ],
)
async def test_others_are_left_alone(body: Object) -> None:
    world = World(body)
    assert await world.sees() is None
    assert world.told == []


async def test_pod_that_is_another_one_by_now_is_left_alone() -> None:
    world = World(pod())
    async with world.looking():
        world.shows(world.body)
        world.body["metadata"]["uid"] = "another"
    assert world.patches == []


async def test_conflict_with_another_writer_of_the_pod_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}))
    world.conflicts = 2
    assert await world.sees() is not None, "it is not protected, and nobody says so"
    assert len(world.told) == 1


async def test_it_is_said_also_where_the_answer_to_the_write_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, 0.0)
    world = World(pod(labels={JOB_NAME: "md", COMPLETION: "3"}))
    world.lost_answers = 1
    await world.sees()
    assert len(world.patches) == 1
    assert [one.kind for one in world.told] == ["MissedByWebhook"]
    assert world.unprepared._unanswered == {}


def test_who_was_refused_by_a_webhook_is_told_of_on_the_pod_and_its_owner() -> None:
    body = pod(labels={JOB_NAME: "md", names.PROTECTED: "false"}, annotations={names.NOT_PROTECTED: "it has no number"})
    world = World(body)
    world.unprepared.refused._put(msgspec.convert(body, PartialObject))
    assert [one.involved["kind"] for one in world.events] == ["Pod", "Job"]
    assert all(one.warning and one.reason == "NotProtected" for one in world.events)
    assert world.events[0].message == "md-0-x is not protected: it has no number"


def refused(created: datetime = NOW, **changes: Any) -> Object:
    annotations = {names.NOT_PROTECTED: "spec.hostUsers: False gives each pod other users of the node (leave it out)"}
    body = pod(labels={JOB_NAME: "md", COMPLETION: "3", names.PROTECTED: "false"}, annotations=annotations, **changes)
    body["metadata"]["creationTimestamp"] = created.isoformat()
    return body


async def test_who_was_refused_says_what_snapshot_it_was_started_without() -> None:
    """Its template was changed since its predecessor was saved."""
    world = World(refused(), snapshot(3, 7), snapshot(4, 9))
    async with world.looking():
        world.shows_refused()
    (told,) = world.told
    assert (told.kind, told.severity) == ("ColdStart", "Warning")
    assert told.text == (
        "Started md-0-x without checkpoint md/3@7, which was there: it is not protected:"
        " spec.hostUsers: False gives each pod other users of the node (leave it out)"
    )
    assert told.workload is not None
    assert told.held == HeldObject("batch/v1", "Job", "bio", "md", "job-uid")
    assert world.patches == []
    assert [one.reason for one in world.events] == ["NotProtected"] * 2


@pytest.mark.parametrize(
    ("body", "saved"),
    [
        pytest.param(refused(), snapshot(4, 9), id="another replica's"),
        pytest.param(refused(said="no name"), snapshot(3, 7), id="it does not say who it is"),
        pytest.param(refused(NOW - timedelta(seconds=700)), snapshot(3, 7), id="an earlier leader has said it"),
    ],
)
async def test_who_was_refused_and_misses_nothing_says_no_more(body: Object, saved: KnownCheckpoint) -> None:
    world = World(body, saved)
    async with world.looking():
        world.shows_refused()
    assert world.told == []
    assert len(world.events) == 2


async def test_refused_pods_that_are_gone_or_cannot_be_read_stop_nothing() -> None:
    world = World(refused(), snapshot(3, 7))
    async with world.looking():
        world.shows_refused()
        world.body["spec"]["containers"] = 7
    assert [one.metadata.uid for one in world.left] == ["pod-uid"]
    world.body = {}
    async with world.looking():
        world.unprepared._looking.add("bio/md-0-x")
    assert world.told == []


async def test_pods_of_one_namespace_delay_those_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world, read = World({}), list[str]()

    async def get(_: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        read.append(namespace)
        raise AbsentError(f"{name} is no {into}")

    monkeypatch.setattr(world, "get", get)
    async with world.looking():
        for number in range(50):
            flood = pod(namespace="flood", owner=None)
            flood["metadata"] |= {"name": f"p{number}", "uid": f"u{number}"}
            world.shows(flood)
        world.shows(pod(owner=None))
    assert read.index("bio") == 1
    assert len(read) == 51
