"""Whatever kind Kueue evicts, and whoever makes its pods, their work goes on: one path for all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import pytest

from cedana_sched.model.objects.names import API_VERSION, ID
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, BEGUN, begun, by_name, counting, counting_under_a_name
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import KUEUE, PRIORITY_LABEL, QUEUE_LABEL, groups, indexed_job, priorities

pytestmark = pytest.mark.any_shape

_JOBSET: Final = "jobset.x-k8s.io/v1alpha2"
_ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
_LEADER_WORKER_SET: Final = "leaderworkerset.x-k8s.io/v1"
_LEADER_WORKER_SET_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_PYTORCH: Final = "kubeflow.org/v1"
_MPI: Final = "kubeflow.org/v2beta1"
_MPI_ROLE: Final = "training.kubeflow.org/job-role"


@asynccontextmanager
async def one_queue(namespace: Namespace) -> AsyncIterator[None]:
    """A queue that holds four of the small pods, or one urgent Job."""
    async with priorities(namespace, low=1, high=1000), groups(namespace, {"bio": "800m"}):
        yield


def of_priority(namespace: Namespace, name: str) -> dict[str, str]:
    return {QUEUE_LABEL: "bio", PRIORITY_LABEL: f"{namespace.name}-{name}"}


async def preempt(namespace: Namespace, image: str, name: str = "urgent") -> None:
    """Run an urgent Job that needs the whole queue; returns when it is complete."""
    command = ("python3", "-c", "print('done')")
    urgent = indexed_job(name, "bio", image, *command, pods=4, labels=of_priority(namespace, "high"))
    await namespace.apply(urgent)
    await namespace.wait("batch/v1", "Job", name, has_condition("Complete"), within=150)


def suspensions(audit: Audit, namespace: Namespace, resource: str) -> tuple[list[Write], list[Write]]:
    """Kueue's suspensions of objects: those that were refused for a hold, and those that went through."""
    writes = [one for one in audit.writes(namespace=namespace.name) if (one.resource, one.user) == (resource, KUEUE)]
    suspending = [one for one in writes if '"suspend": true' in json.dumps(one.body)]
    return [one for one in suspending if one.code == 429], [one for one in suspending if one.code < 300]


async def assert_saved(namespace: Namespace, identities: set[tuple[str, int]]) -> None:
    """Each pod has its own identity; the first part of its id is the object's."""
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    found = {(one["spec"]["identity"]["id"].split("-", 2)[-1], one["spec"]["identity"]["index"]) for one in checkpoints}
    assert found == identities
    assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}


async def assert_go_on(pods: Following, *indices: int) -> None:
    """Each has one successor, which counts on without a gap."""
    for index in indices:
        await asyncio.wait_for(pods.said(index, len(pods.lines(index)) + BEGUN), patient(120))
        lines = pods.lines(index)
        assert lines == [str(number) for number in range(len(lines))], f"pod {index}"
        assert len(pods.pods[index]) == 2


def jobset(name: str, image: str, labels: Mapping[str, str], *command: str) -> Object:
    """Two replicated jobs of two indexed pods each."""
    pods = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container(image, *command, resources={"requests": {"cpu": "200m"}})],
    }
    job = {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": {"spec": pods}}}
    jobs = [{"name": role, "replicas": 1, "template": job} for role in ("actor", "learner")]
    spec = {"suspend": True, "replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 0}}
    return {"apiVersion": _JOBSET, "kind": "JobSet", "metadata": {"name": name, "labels": dict(labels)}, "spec": spec}


async def test_jobset_gives_way_twice_and_all_its_jobs_continue(
    namespace: Namespace, toolbox: str, jobset_beside_kueue: None, installed_with_kueue: Product, audit: Audit
) -> None:
    async with (
        one_queue(namespace),
        Following.of(namespace, "actor", label=_ROLE) as actors,
        Following.of(namespace, "learner", label=_ROLE) as learners,
    ):
        await namespace.apply(jobset("rl", toolbox, of_priority(namespace, "low"), *counting()))
        await begun(actors, 0, 1)
        await begun(learners, 0, 1)

        await preempt(namespace, toolbox)
        for following in (actors, learners):
            await begun(following, 0, 1, counts=2 * BEGUN)
        await preempt(namespace, toolbox, "more-urgent")

        await namespace.wait(_JOBSET, "JobSet", "rl", has_condition("Completed"), within=180)
        for following in (actors, learners):
            await asyncio.wait_for(following.read(), patient(60))
            assert [following.lines(index) for index in (0, 1)] == [ALL, ALL]
            assert [len(following.pods[index]) for index in (0, 1)] == [3, 3]
    refused, suspended = suspensions(audit, namespace, "jobsets")
    assert refused
    assert all("Held for checkpoint by cedana" in one.message for one in refused)
    assert len(suspended) == 2
    await assert_saved(namespace, {(f"{role}-0", index) for role in ("actor", "learner") for index in (0, 1)})


def mpi_job(name: str, image: str, labels: Mapping[str, str]) -> Object:
    """A launcher that counts to the end, and two workers that count until they are taken away."""

    def replicas(count: int, *command: str) -> Object:
        main = container(image, *command, resources={"requests": {"cpu": "200m"}})
        pods = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pods}}

    spec = {
        "runPolicy": {"suspend": True, "cleanPodPolicy": "Running", "backoffLimit": 0},
        "mpiReplicaSpecs": {"Launcher": replicas(1, *counting()), "Worker": replicas(2, *counting(counts=None))},
    }
    return {"apiVersion": _MPI, "kind": "MPIJob", "metadata": {"name": name, "labels": dict(labels)}, "spec": spec}


async def test_mpi_job_gives_way_and_launcher_and_workers_continue(
    namespace: Namespace, toolbox: str, mpi_operator_beside_kueue: None, installed_with_kueue: Product, audit: Audit
) -> None:
    async with (
        one_queue(namespace),
        Following.of(namespace, "launcher", label=_MPI_ROLE) as launcher,
        Following.of(namespace, "worker", label=_MPI_ROLE) as workers,
    ):
        await namespace.apply(mpi_job("sim", toolbox, of_priority(namespace, "low")))
        await begun(launcher, 0)
        await begun(workers, 0, 1)

        await preempt(namespace, toolbox)

        await namespace.wait(_MPI, "MPIJob", "sim", has_condition("Succeeded"), within=180)
        await asyncio.wait_for(launcher.read(), patient(60))
        assert launcher.lines(0) == ALL
        for index in (0, 1):
            lines = workers.lines(index)
            assert lines == [str(number) for number in range(len(lines))], f"worker {index}"
            assert len(workers.pods[index]) == 2
    refused, suspended = suspensions(audit, namespace, "mpijobs")
    assert refused
    assert len(suspended) == 1
    await assert_saved(namespace, {("launcher", 0), ("worker", 0), ("worker", 1)})


def deployment(name: str, image: str, labels: Mapping[str, str], *command: str) -> Object:
    """Two pods that nothing tells apart, each a Workload of its own, with one id."""
    main = container(image, *command, resources={"requests": {"cpu": "200m"}})
    template = {
        "metadata": {"labels": {"app": name, **labels}, "annotations": {ID: name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@pytest.mark.exhaustive  # a group shows the same hold, for several pods at a time
async def test_pods_of_a_deployment_give_way_and_continue(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with one_queue(namespace), Following.of(namespace, "serve", label="app") as pods:
        await namespace.apply(deployment("serve", toolbox, of_priority(namespace, "low"), *counting_under_a_name()))
        await asyncio.wait_for(pods.said(0, 40), patient(120))

        await preempt(namespace, toolbox)

        await asyncio.wait_for(pods.said(0, len(pods.lines(0)) + 40), patient(120))
        counted = by_name(pods.lines(0))
        assert len(pods.pods[0]) == 4, "each pod has one successor"
        assert len(counted) == 2, "and both are continued"
        for name, numbers in counted.items():
            assert numbers == list(range(len(numbers))), name
    stopped = [
        one
        for one in audit.writes(namespace=namespace.name)
        if (one.resource, one.user) == ("pods/status", KUEUE) and "WorkloadEvicted" in json.dumps(one.body)
    ]
    assert {one.code for one in stopped} == {200, 429}


def stateful_set(name: str, image: str, labels: Mapping[str, str], *command: str) -> Object:
    """Two numbered pods, which are one group for Kueue."""
    main = container(image, *command, resources={"requests": {"cpu": "200m"}})
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {ID: name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
    }
    spec = {"replicas": 2, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


async def test_group_of_pods_gives_way_as_a_whole_and_continues(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with one_queue(namespace), Following.of(namespace, "db", label="app") as pods:
        await namespace.apply(stateful_set("db", toolbox, of_priority(namespace, "low"), *counting(counts=None)))
        await begun(pods, 0, 1)

        await preempt(namespace, toolbox)

        await assert_go_on(pods, 0, 1)
    holds = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
    assert [len(one["status"]["victims"]) for one in holds] == [2], "both by one hold"


def leader_worker_set(name: str, image: str, labels: Mapping[str, str], *command: str) -> Object:
    """One group: a leader and a worker, which are one Workload for Kueue."""
    main = container(image, *command, resources={"requests": {"cpu": "200m"}})
    template = {
        "metadata": {"annotations": {ID: name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
    }
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": _LEADER_WORKER_SET, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}


@pytest.mark.exhaustive  # its controller takes minutes to build; a StatefulSet's group shows the same hold
async def test_leader_and_worker_give_way_together_and_continue(
    namespace: Namespace, toolbox: str, lws_beside_kueue: None, installed_with_kueue: Product
) -> None:
    async with one_queue(namespace), Following.of(namespace, "llm", label=_LEADER_WORKER_SET_NAME) as pods:
        body = leader_worker_set("llm", toolbox, of_priority(namespace, "low"), *counting(counts=None))
        await namespace.apply(body)
        await begun(pods, 0, 1)

        await preempt(namespace, toolbox)

        await assert_go_on(pods, 0, 1)
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    identities = {(one["spec"]["identity"]["id"], one["spec"]["identity"]["index"]) for one in checkpoints}
    assert identities == {("llm-0", 0), ("llm-0", 1)}
    assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}


def pytorch_job(name: str, image: str, labels: Mapping[str, str], *command: str) -> Object:
    """Two workers; without a master none of them waits for its name in DNS."""
    main = {**container(image, *command, resources={"requests": {"cpu": "200m"}}), "name": "pytorch"}
    pods = {"terminationGracePeriodSeconds": 1, "containers": [main]}
    workers = {"replicas": 2, "restartPolicy": "Never", "template": {"spec": pods}}
    spec = {
        "runPolicy": {"suspend": True, "cleanPodPolicy": "None", "backoffLimit": 0},
        "pytorchReplicaSpecs": {"Worker": workers},
    }
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": _PYTORCH, "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


@pytest.mark.exhaustive  # its operator takes minutes to build; an MPIJob shows the same hold
async def test_pytorch_job_gives_way_and_its_workers_continue(
    namespace: Namespace, toolbox: str, pytorch_jobs_beside_kueue: None, installed_with_kueue: Product, audit: Audit
) -> None:
    async with (
        one_queue(namespace),
        Following.of(namespace, "ddp", "pytorch", label="training.kubeflow.org/job-name") as workers,
    ):
        await namespace.apply(pytorch_job("ddp", toolbox, of_priority(namespace, "low"), *counting()))
        await begun(workers, 0, 1)

        await preempt(namespace, toolbox)

        await namespace.wait(_PYTORCH, "PyTorchJob", "ddp", has_condition("Succeeded"), within=180)
        await asyncio.wait_for(workers.read(), patient(60))
        assert [workers.lines(index) for index in (0, 1)] == [ALL, ALL]
        assert [len(workers.pods[index]) for index in (0, 1)] == [2, 2]
    refused, suspended = suspensions(audit, namespace, "pytorchjobs")
    assert refused
    assert len(suspended) == 1
    await assert_saved(namespace, {("worker", 0), ("worker", 1)})
