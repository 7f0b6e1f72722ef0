"""Two running pods never share an identity, and whoever takes a pod's place has its identity: for every controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission
from cedana_sched_webhooks.replica_numbers import Distinction, ReplicaNumbers
from tests.unit.webhooks.admission_builders import configuration, creation, knowledge, pod

SCALES: dict[str, str] = {
    "completion": "batch.kubernetes.io/job-completion-index",
    "replicated job": "jobset.sigs.k8s.io/replicatedjob-name",
    "job": "jobset.sigs.k8s.io/job-index",
    "type": "training.kubeflow.org/replica-type",
    "replica": "training.kubeflow.org/replica-index",
    "group": "leaderworkerset.sigs.k8s.io/group-index",
    "worker": "leaderworkerset.sigs.k8s.io/worker-index",
    "ordinal": "apps.kubernetes.io/pod-index",
    "task": "volcano.sh/task-spec",
    "in task": "volcano.sh/task-index",
    "ray group": "ray.io/group",
    "ray replica": "ray.io/worker-group-replica-index",
    "ray host": "ray.io/replica-host-index",
}


class Server:
    """Knows Jobs by their names, and how many pods each runs at a time."""

    def __init__(self, **jobs: Object) -> None:
        self._jobs = jobs

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        del namespace
        if resource.kind != "Job" or name not in self._jobs:
            raise AbsentError(name)
        return msgspec.convert({"metadata": {"name": name}} | self._jobs[name], into)


def of(api_version: str, kind: str, name: str = "train", identifier: str | None = "train", **scale: str) -> Object:
    """A pod of a controller; `scale` are its labels, by the words of `SCALES`."""
    body = pod(identifier, labels={SCALES[word.replace("_", " ")]: value for word, value in scale.items()})
    body["metadata"] |= {"generateName": f"{name}-", "annotations": {}}
    if kind:
        owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}
        body["metadata"]["ownerReferences"] = [owner]
    return body


async def created(body: Object, server: Server | None = None) -> Object:
    """The pod as it is, asked for twice, as the API server does when another webhook changes the pod."""
    admission = pod_admission.PodAdmission(
        knowledge(), configuration(), ReplicaNumbers(cast("Api", server or Server()))
    )
    once = apply_json_patch(body, (await admission.answer(creation(body))).patch)
    again = apply_json_patch(once, (await admission.answer(creation(once))).patch)
    assert identity(again) == identity(once)
    return again


def identity(body: Object) -> str | None:
    metadata = body["metadata"]
    if (metadata.get("labels") or {}).get(names.PROTECTED) != "true":
        return None
    return f"{metadata['annotations'][names.ID]}/{metadata['annotations'][names.INDEX]}"


KUBEFLOW, JOBSET_JOB = ("kubeflow.org/v1", "PyTorchJob"), ("batch/v1", "Job")


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param(
            [of(*KUBEFLOW, type="master", replica="0")] + [of(*KUBEFLOW, type="worker", replica=i) for i in "012"],
            ["train-master/0", "train-worker/0", "train-worker/1", "train-worker/2"],
            id="PyTorchJob",
        ),
        pytest.param(
            [
                of(*JOBSET_JOB, f"train-{group}-{job}", replicated_job=group, job=job, completion=index)
                for group in ("ps", "workers")
                for job in "01"
                for index in "01"
            ],
            [f"train-{group}-{job}/{index}" for group in ("ps", "workers") for job in "01" for index in "01"],
            id="JobSet",
        ),
        pytest.param(
            [of("apps/v1", "StatefulSet", group=g, worker=w, ordinal=w) for g in "01" for w in "01"],
            ["train-0/0", "train-0/1", "train-1/0", "train-1/1"],
            id="LeaderWorkerSet",
        ),
        pytest.param(
            [of("ray.io/v1", "RayCluster", ray_group="gpus", ray_replica=r, ray_host=h) for r in "01" for h in "01"],
            ["train-gpus-0/0", "train-gpus-0/1", "train-gpus-1/0", "train-gpus-1/1"],
            id="RayCluster of several hosts",
        ),
        pytest.param([of("apps/v1", "StatefulSet", ordinal=i) for i in "01"], ["train/0", "train/1"], id="StatefulSet"),
        pytest.param(
            [of("batch.volcano.sh/v1alpha1", "Job", task=t, in_task=i) for t in ("ps", "worker") for i in "01"],
            ["train-ps/0", "train-ps/1", "train-worker/0", "train-worker/1"],
            id="Volcano's Job",
        ),
        pytest.param([of(*JOBSET_JOB, completion=i) for i in "01"], ["train/0", "train/1"], id="indexed Job"),
        pytest.param([of("", "")], ["train/0"], id="bare pod"),
    ],
)
async def test_labels_tell_replicas_apart(replicas: list[Object], expected: list[str]) -> None:
    jobs: dict[str, Object] = {
        name: {"spec": {}} for name in ("train", *(f"train-{g}-{j}" for g in ("ps", "workers") for j in "01"))
    }
    assert [identity(await created(one, Server(**jobs))) for one in replicas] == expected


async def test_pods_of_a_controller_that_numbers_none_are_refused_in_words() -> None:
    body = of("example.com/v1", "Solver")
    answer = pod_admission.admit_pod(creation(body), knowledge(), configuration())
    after = apply_json_patch(body, answer.patch)
    assert identity(after) is None
    told = after["metadata"]["annotations"][names.NOT_PROTECTED]
    assert "Solver/train" in told
    assert "give each of its pods an id of its own" in told
    assert told in answer.warnings[0]


async def test_pod_that_was_refused_and_then_is_not_says_so_no_more() -> None:
    refused = await created(of("example.com/v1", "Solver"))
    refused["metadata"]["annotations"][names.INDEX] = "3"
    after = await created(refused)
    assert identity(after) == "train/3"
    assert names.NOT_PROTECTED not in after["metadata"]["annotations"]


async def test_pods_of_a_deployment_are_never_one_also_while_it_is_replaced() -> None:
    both = [identity(await created(of("apps/v1", "ReplicaSet", name))) for name in ("train-5d", "train-7c")]
    assert len(set(both)) == 2
    assert None not in both


async def test_jobs_that_another_object_made_are_told_apart_by_their_names() -> None:
    made_by = {"apiVersion": "example.com/v1", "kind": "Sweep", "name": "s", "uid": "9", "controller": True}
    jobs = {name: {"metadata": {"name": name, "ownerReferences": [made_by]}} for name in ("sweep-a", "sweep-b")}
    for scale in ({}, {"completion": "0"}):
        found = [identity(await created(of(*JOBSET_JOB, name, **scale), Server(**jobs))) for name in sorted(jobs)]
        assert found == ["train-sweep-a/0", "train-sweep-b/0"]


@pytest.mark.parametrize("uid", ["uid-of-sweep-a", "x" * 100_000])
async def test_a_pod_that_names_another_s_job_changes_nothing_for_its_pods(uid: str) -> None:
    made_by = {"apiVersion": "example.com/v1", "kind": "Sweep", "name": "s", "uid": "9", "controller": True}
    jobs: dict[str, Object] = {
        "sweep-a": {"metadata": {"name": "sweep-a", "uid": "uid-of-sweep-a", "ownerReferences": [made_by]}},
        "mine": {"metadata": {"name": "mine", "uid": "uid-of-mine"}},
    }
    siblings = ReplicaNumbers(cast("Api", Server(**jobs)))
    strange = of(*JOBSET_JOB, "mine", completion="0")
    strange["metadata"]["ownerReferences"][0]["uid"] = uid
    assert await siblings.distinguish(strange, "lab") == Distinction()
    assert await siblings.distinguish(of(*JOBSET_JOB, "sweep-a", completion="0"), "lab") == Distinction(job="sweep-a")
    assert max(map(len, siblings._named)) < 100


@pytest.mark.parametrize("name", ["../../secrets/mine", "a?watch=true", "A", "x" * 254, ""])
async def test_a_name_that_no_job_has_is_not_asked_for(name: str) -> None:
    siblings = ReplicaNumbers(cast("Api", None))
    assert (await siblings.distinguish(of(*JOBSET_JOB, name), "lab")).by_chance is not None


async def test_jobs_of_a_cronjob_go_on_with_each_others_work() -> None:
    made_by = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "9", "controller": True}
    job = {"metadata": {"name": "c-1", "ownerReferences": [made_by]}}
    assert identity(await created(of(*JOBSET_JOB, "c-1"), Server(**{"c-1": job}))) == "train/0"


async def test_id_that_is_too_long_with_its_role_ends_in_a_digest() -> None:
    long = "m" * 60
    found = {identity(await created(of(*KUBEFLOW, "t", long, type=kind, replica="0"))) for kind in ("master", "worker")}
    assert len(found) == 2
    assert all(one is not None and len(one) == 65 and one.startswith("m" * 50) for one in found)


NUMBER = st.integers(0, 12).map(str)
ROLE = st.sampled_from(["a", "b", "a-1", "worker"])
REPLICAS: dict[str, tuple[tuple[str, str], st.SearchStrategy[dict[str, str]]]] = {
    "PyTorchJob": (KUBEFLOW, st.fixed_dictionaries({"type": ROLE, "replica": NUMBER})),
    "JobSet": (JOBSET_JOB, st.fixed_dictionaries({"replicated_job": ROLE, "job": NUMBER, "completion": NUMBER})),
    "LeaderWorkerSet": (("apps/v1", "StatefulSet"), st.fixed_dictionaries({"group": NUMBER, "worker": NUMBER})),
    "StatefulSet": (("apps/v1", "StatefulSet"), st.fixed_dictionaries({"ordinal": NUMBER})),
    "Volcano": (("batch.volcano.sh/v1alpha1", "Job"), st.fixed_dictionaries({"task": ROLE, "in_task": NUMBER})),
    "Ray": (
        ("ray.io/v1", "RayCluster"),
        st.fixed_dictionaries({"ray_group": ROLE, "ray_replica": NUMBER, "ray_host": NUMBER}),
    ),
    "Deployment": (("apps/v1", "ReplicaSet"), st.just({})),
    "plain Job": (JOBSET_JOB, st.just({})),
    "unknown": (("example.com/v1", "Solver"), st.just({})),
}
BY_CHANCE = {"Deployment", "plain Job"}


@pytest.mark.parametrize("kind", REPLICAS)
def test_distinct_pods_have_distinct_identities_and_a_successor_has_the_same(kind: str) -> None:
    owner, labels = REPLICAS[kind]

    @settings(deadline=None, max_examples=30)
    @given(st.lists(labels, min_size=2, max_size=6, unique_by=None if kind in BY_CHANCE | {"unknown"} else _key))
    def holds(replicas: list[dict[str, str]]) -> None:
        async def judge() -> None:
            server = Server(train={"spec": {"parallelism": 6}})
            make: Callable[[dict[str, str]], Object] = lambda scale: of(*owner, **scale)  # noqa: E731
            first = [identity(await created(make(one), server)) for one in replicas]
            if kind == "unknown":
                assert set(first) == {None}
                return
            assert None not in first
            assert len(set(first)) == len(first)
            if kind not in BY_CHANCE:
                assert [identity(await created(make(one), server)) for one in replicas] == first

        asyncio.run(judge())

    holds()


def _key(scale: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(scale.items()))
