"""A pod is saved, and returns, by the policy of the queue by which its scheduler counts it, whatever it says itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINTS, JOBS, PODS, RESTORES, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, serialized_mark
from cedana_sched.testing import FakeApi
from cedana_sched.testing.traffic import LATE_TURNS
from cedana_sched_kueue.admission_check_decisions import build_active_condition
from cedana_sched_kueue.objects import ADMISSION_CHECKS, WORKLOADS, AdmissionCheck
from cedana_sched_volcano.objects import GROUP_NAME, POD_GROUPS, QUEUE_NAME, QUEUE_OF_JOB, QUEUES

NAMESPACE = "lab"
STRICT, WEAK = 10.0, 20.0
"""The deadlines of two policies, by which they are told apart."""
EARLIER, LATER = "2026-11-25T10:00:00Z", "2026-11-25T10:00:01Z"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "md", "uid": "job-uid", "controller": True}
FORGED = {names.POLICY: "weak", names.QUEUE_POLICY: "weak", QUEUE_NAME: "weak", QUEUE_OF_JOB: "weak"}


def _cluster() -> FakeApi:
    """Of each scheduler one job of namespace `lab`, in its strict queue; there is a weak one as well."""
    server = FakeApi()
    server.traffic.late = {QUEUES, ADMISSION_CHECKS}  # what says whose policy counts

    def put(resource: Resource, name: str, of: dict[str, Any] | None = None, **parts: Any) -> None:
        at = {"namespace": NAMESPACE} if resource.namespaced else {}
        server.put(resource, {"metadata": {"name": name, "uid": f"{name}-uid", **at, **(of or {})}, **parts})

    for name, seconds in (("strict", STRICT), ("weak", WEAK)):
        spec = {"deadlineSeconds": seconds, "allowedNamespaces": {"from": "All"}}
        put(CHECKPOINT_POLICIES, name, spec=spec)
        put(QUEUES, name, {"annotations": {names.PROTECT: "true", names.POLICY: name}})
        parameters = {"apiGroup": names.GROUP, "kind": "CheckpointPolicy", "name": name}
        check = {"controllerName": names.ADMISSION_CHECK_CONTROLLER, "parameters": parameters}
        known = msgspec.convert({"metadata": {"name": f"{name}-check"}, "spec": check}, AdmissionCheck)
        put(
            ADMISSION_CHECKS,
            f"{name}-check",
            spec=check,
            **_parts(build_active_condition(known, (name,), datetime.now(tz=UTC))),
        )
    put(POD_GROUPS, "group", spec={"minMember": 1, "queue": "strict"})
    put(POD_GROUPS, "podgroup-set-uid", spec={"minMember": 1, "queue": "strict"})
    template = {"metadata": {"annotations": FORGED}, "spec": {"containers": []}}
    put(JOBS, "md", {"uid": "job-uid"}, spec={"suspend": False, "template": template})
    conditions = [{"type": one, "status": "True"} for one in ("QuotaReserved", "Admitted", "Evicted")]
    status: Object = {"conditions": conditions, "admissionChecks": [{"name": "strict-check", "state": "Pending"}]}
    put(WORKLOADS, "md", {"ownerReferences": [OWNER], "creationTimestamp": EARLIER}, status=status)
    return server


def _parts(declared: Object | None) -> dict[str, Any]:
    """The status of a check that is active already: nobody need write it."""
    assert declared is not None
    return {"status": declared["status"]}


def _pod(
    phase: str, annotations: dict[str, str], scheduler: str, owner: Object | None = None, namespace: str = NAMESPACE
) -> Object:
    said = {names.ID: "md", names.INDEX: "0", **FORGED, **annotations}
    metadata: Object = {"name": "md-0", "namespace": namespace, "uid": "pod-uid", "annotations": said}
    metadata |= {"labels": {names.PROTECTED: "true"}, "ownerReferences": [] if owner is None else [owner]}
    spec = {"nodeName": "node-1", "schedulerName": scheduler, "containers": [{"name": "main"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def _marked() -> dict[str, str]:
    now = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
    return {names.EVICTION_REQUESTED: serialized_mark(EvictionMark("volcano", now, now))}


CASES = [
    pytest.param("volcano", {"scheduler": "volcano"}, {GROUP_NAME: "group"}, STRICT, id="another Queue's name"),
    pytest.param(
        "volcano",
        {"scheduler": "volcano", "owner": {**OWNER, "kind": "ReplicaSet", "uid": "set-uid"}},
        {},
        STRICT,
        id="no PodGroup's name",
    ),
    pytest.param("kueue", {"scheduler": "default-scheduler", "owner": OWNER}, {}, STRICT, id="under a Job by hand"),
]
OF_NO_QUEUE = [
    pytest.param("kueue", {"scheduler": "default-scheduler"}, {}, WEAK, id="of nobody"),
    pytest.param(
        "kueue",
        {"scheduler": "default-scheduler", "owner": OWNER, "namespace": "elsewhere"},
        {},
        WEAK,
        id="under a Job of another namespace",
    ),
]


@pytest.mark.parametrize(("adapter", "fields", "said", "seconds"), [*CASES, *OF_NO_QUEUE])
async def test_it_returns_by_its_queues_policy(adapter: str, fields: Any, said: dict[str, str], seconds: float) -> None:
    server = _cluster()
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=(adapter,))
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        for _ in range(2 * LATE_TURNS):  # its queue is listed
            await asyncio.sleep(0)
        server.put(PODS, _pod("Pending", {names.RESTORE_IDENTITY: "md/0", **said}, **fields))
        await server.until(lambda: bool(server.all_of(RESTORES)))
    (restore,) = server.all_of(RESTORES)
    assert restore["spec"]["policy"]["deadlineSeconds"] == seconds


@pytest.mark.parametrize(("adapter", "fields", "said", "seconds"), CASES)
async def test_it_is_saved_by_its_queues_policy(
    adapter: str, fields: Any, said: dict[str, str], seconds: float
) -> None:
    server = _cluster()
    server.put(PODS, _pod("Running", {**_marked(), **said}, **fields))
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=(adapter,))
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        await server.until(lambda: bool(server.all_of(CHECKPOINTS)))
    (checkpoint,) = server.all_of(CHECKPOINTS)
    assert checkpoint["spec"]["policy"]["deadlineSeconds"] == seconds


async def test_a_running_pod_that_is_moved_to_a_weaker_queue_is_saved_by_its_own() -> None:
    """Its annotation, and its PodGroup, are its owner's to write, and Volcano looks once a second."""
    server = _cluster()
    server.put(POD_GROUPS, _named("mine", spec={"minMember": 1, "queue": "weak"}))
    said = {names.POLICY: "strict", names.QUEUE_POLICY: "strict", GROUP_NAME: "mine"}
    server.put(PODS, _pod("Running", {**_marked(), **said}, scheduler="volcano"))
    assert await _deadlines(server, "volcano") == [STRICT]


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({**OWNER, "kind": "Nothing", "apiVersion": "x.example/v1"}, id="that Kueue does not see"),
        pytest.param({**OWNER, "name": "another"}, id="of a Job of another name"),
        pytest.param(OWNER, id="that Kueue has not removed yet"),
    ],
)
async def test_a_workload_that_somebody_makes_beside_kueues_decides_nothing(owner: Object) -> None:
    server = _cluster()
    status: Object = {"admissionChecks": [{"name": "weak-check", "state": "Ready"}]}
    server.put(WORKLOADS, _named("a", {"ownerReferences": [owner], "creationTimestamp": LATER}, status=status))
    unsaid = {names.QUEUE_POLICY: "", names.POLICY: ""}
    server.put(PODS, _pod("Running", {**_marked(), **unsaid}, scheduler="default-scheduler", owner=OWNER))
    assert await _deadlines(server, "kueue") == [STRICT]


async def _deadlines(server: FakeApi, adapter: str) -> list[float]:
    """Of all Checkpoints that are begun."""
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=(adapter,))
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        await server.until(lambda: bool(server.all_of(CHECKPOINTS)))
    return [one["spec"]["policy"]["deadlineSeconds"] for one in server.all_of(CHECKPOINTS)]


def _named(name: str, more: Object | None = None, **parts: Any) -> Object:
    return {"metadata": {"name": name, "uid": f"{name}-uid", "namespace": NAMESPACE, **(more or {})}, **parts}
