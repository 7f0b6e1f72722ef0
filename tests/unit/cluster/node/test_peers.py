"""Who of a pod's own job is at the addresses that it is connected to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from cedana_sched.cluster.node.node_pods import MOST_ADDRESSES, NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, PartialObject, Pod
from cedana_sched.kube.resources import PODS, Resource
from cedana_sched.model.preemption import WorkloadRef

WORKLOAD = WorkloadRef("u0", "bio", "md-master-0", "n1")
ELSEWHERE = "10.0.9.9"


def metadata(name: str, uid: str, job: str | None, labels: Mapping[str, str] | None = None) -> Metadata:
    owners = () if job is None else (OwnerReference("batch.volcano.sh/v1alpha1", "Job", job, f"uid of {job}", True),)
    kept = dict(labels or {})
    return Metadata(name=name, namespace="bio", uid=uid, resource_version="1", labels=kept, owner_references=owners)


class Server:
    """Knows pods by their addresses."""

    def __init__(self) -> None:
        self.pods: dict[str, Metadata] = {}
        self.asked: list[str] = []

    async def list_all(self, resource: Resource, namespace: str, query: Mapping[str, str], *, into: Any) -> Any:
        assert (resource, namespace) == (PODS, "bio")
        at, phase = query["fieldSelector"].split(",")
        assert phase == "status.phase=Running", "who has ended keeps an address that is another's by now"
        address = at.removeprefix("status.podIP=")
        self.asked.append(address)
        found = self.pods.get(address)
        return () if found is None else (PartialObject(found),), "1"


@pytest.fixture
def server() -> Server:
    return Server()


def pods(server: Server, job: str | None = "md", labels: Mapping[str, str] | None = None) -> NodePods:
    api = cast("Any", server)
    known = NodePods(api, "n1", OrderFeed(api, "n1", cast("Any", None)))
    known.informer._put(Pod(metadata("md-master-0", "u0", job, labels)))
    return known


async def test_another_of_the_same_job(server: Server) -> None:
    server.pods["10.0.1.2"] = metadata("md-worker-0", "u1", "md")
    assert await pods(server).find_peer(WORKLOAD, {ELSEWHERE, "10.0.1.2"}) == "md-worker-0"


@pytest.mark.parametrize(
    "key", ["jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "leaderworkerset.sigs.k8s.io/name"]
)
@pytest.mark.parametrize(("name", "found"), [("md", "md-worker-0"), ("other", None), ("", None)])
async def test_another_of_the_same_object_by_another_controller(
    server: Server, key: str, name: str, found: str | None
) -> None:
    """A Job has the launcher of an MPIJob, as each part of a JobSet has one."""
    server.pods["10.0.1.2"] = metadata("md-worker-0", "u1", "md-workers", {key: name})
    assert await pods(server, "md-launcher", {key: name and "md"}).find_peer(WORKLOAD, {"10.0.1.2"}) == found


async def test_not_one_with_the_same_number(server: Server) -> None:
    number = {"apps.kubernetes.io/pod-index": "0", "batch.kubernetes.io/job-completion-index": "0"}
    server.pods["10.0.1.2"] = metadata("database-0", "u1", "database", number)
    assert await pods(server, "md", number).find_peer(WORKLOAD, {"10.0.1.2"}) is None


@pytest.mark.parametrize("job", ["database", None])
async def test_not_one_of_anothers(server: Server, job: str | None) -> None:
    server.pods["10.0.1.2"] = metadata("other-0", "u1", job)
    assert await pods(server).find_peer(WORKLOAD, {"10.0.1.2"}) is None


async def test_never_itself(server: Server) -> None:
    server.pods["10.0.1.2"] = metadata("md-master-0", "u0", "md")
    assert await pods(server).find_peer(WORKLOAD, {"10.0.1.2"}) is None


async def test_a_pod_that_nobody_controls_has_none(server: Server) -> None:
    assert await pods(server, None).find_peer(WORKLOAD, {"10.0.1.2"}) is None
    assert server.asked == []


async def test_the_api_server_is_not_asked_without_end(server: Server) -> None:
    addresses = {f"10.0.{number}.1" for number in range(200)}
    assert await pods(server).find_peer(WORKLOAD, addresses) is None
    assert len(server.asked) == MOST_ADDRESSES
