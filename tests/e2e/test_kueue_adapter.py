"""The Kueue adapter beside a real Kueue: admission through our check, preemptions as signals, releases by annotation.

An admission policy stands in for the webhook's hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api as ProductApi
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_kueue.adapter import KueueAdapter
from cedana_sched_kueue.preemptions import KueueReport
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, is_gone, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.kueue_hold import suspension_held
from tests.e2e.product import queues

pytestmark = pytest.mark.any_shape

_ROOT = Path(__file__).parents[2]
_RIGHTS = _ROOT / "adapters" / "kueue" / "rbac.yaml"
_ENDLESS = "import time; time.sleep(10_000)"


class _BuiltIn:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:  # there is one
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()


class _NoNotes:
    async def read(self) -> None: ...

    async def write(self, notes: bytes) -> None: ...


@dataclass
class _Running:
    adapter: KueueAdapter
    reports: asyncio.Queue[KueueReport] = field(default_factory=asyncio.Queue)

    async def signal(self, within: float = 60) -> Signal:
        async with asyncio.timeout(patient(within)):
            report = await self.reports.get()
        assert isinstance(report, Preempted)
        return report.signal


@asynccontextmanager
async def _adapting(kubeconfig: Path) -> AsyncIterator[_Running]:
    async with ProductApi.open(str(kubeconfig)) as api:
        pods = Informer(Watch(api, PODS, Pod, labels=f"{names.PROTECTED}=true"))
        checkpoints = Informer(Watch(api, CHECKPOINTS, KnownCheckpoint))
        access = ClusterAccess(
            api, EventRecorder(api, "test"), pods, _BuiltIn(), CheckpointsById(checkpoints), "-", _NoNotes()
        )
        running = _Running(KueueAdapter.connect(access))

        async def read() -> None:
            async with aclosing(running.adapter.reports()) as reports:  # type: ignore[type-var]  # it is a generator
                async for report in reports:
                    running.reports.put_nowait(report)

        async with asyncio.TaskGroup() as group:
            works = (pods.run(), checkpoints.run(), running.adapter.run(), read())
            tasks = [group.create_task(work) for work in works]
            yield running
            for task in tasks:
                task.cancel()


@pytest_asyncio.fixture(loop_scope="session")
async def rights(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig with the rights that the adapter asks for, those to what the coordinator shares, and no others."""
    api, name = namespace.api, namespace.name
    group = "rbac.authorization.k8s.io"
    verbs = ["list", "watch"]
    shared = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
        {"apiGroups": [names.GROUP], "resources": ["checkpoints"], "verbs": verbs},
    ]
    rules = [*yaml.safe_load(_RIGHTS.read_text())["rules"], *shared]
    bodies: list[Object] = [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": name}],
        },
    ]
    for body in bodies:
        await api.apply(body)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = await namespace.kubectl("create", "token", "default")
    config["users"] = [{"name": user["name"], "user": {"token": token.strip()}} for user in config["users"]]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    yield kubeconfig
    for body in bodies:
        await api.delete(body["apiVersion"], body["kind"], name)


@pytest_asyncio.fixture(loop_scope="session")
async def running(rights: Path, kueue: None, kinds: None) -> AsyncIterator[_Running]:
    async with _adapting(rights) as running:
        yield running


def _policy(name: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "CheckpointPolicy", "metadata": {"name": name}, "spec": {}}


def _check(name: str) -> Object:
    parameters = {"apiGroup": names.GROUP, "kind": "CheckpointPolicy", "name": name}
    spec = {"controllerName": names.ADMISSION_CHECK_CONTROLLER, "parameters": parameters}
    return {"apiVersion": queues.API, "kind": "AdmissionCheck", "metadata": {"name": name}, "spec": spec}


@pytest_asyncio.fixture(loop_scope="session")
async def groups(running: _Running, namespace: Namespace) -> AsyncIterator[Namespace]:
    """Two groups, bio and ml, whose queues name our check, and a hold that is in force."""
    api, name = namespace.api, namespace.name
    bodies = [_policy(name), _check(name)]
    for body in bodies:
        await api.apply(body)
    ours = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    async with queues.groups(namespace, check=name), suspension_held(namespace, namespaceSelector=ours):
        yield namespace
    for body in reversed(bodies):
        await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


def _work(name: str, queue: str, image: str, program: str = _ENDLESS, **spec: Any) -> Object:
    """One pod that takes a whole group's share; it has what the pod webhook would write."""
    main = container(image, "python3", "-c", program, resources={"requests": {"cpu": "400m"}})
    labels = {"kueue.x-k8s.io/queue-name": queue}
    body = job(name, main, labels=labels, fields={"suspend": True, "backoffLimit": 0}, **spec)
    metadata = body["spec"]["template"]["metadata"]
    metadata["labels"][names.PROTECTED] = "true"
    metadata["annotations"] = {names.INDEX: "0"}
    return body


async def _preempt(groups: Namespace, toolbox: str, running: _Running, program: str = _ENDLESS) -> Signal:
    """One of bio's two Jobs, to make room for ml's."""
    for name in ("bio-1", "bio-2"):
        await groups.apply(_work(name, "bio", toolbox))
        await groups.pods(f"job={name}")
    await groups.apply(_work("ml", "ml", toolbox, program))
    return await running.signal()


async def _workload_of(namespace: Namespace, name: str) -> Object:
    found = await namespace.api.objects(queues.API, "Workload", namespace.name)
    return next(one for one in found if one["metadata"]["ownerReferences"][0]["name"] == name)


def _released(verdict: Verdict, signal: Signal) -> Release:
    return Release(signal.uid, {victim.workload.uid: verdict for victim in signal.victims})


async def _keep_snapshot(namespace: Namespace, signal: Signal) -> None:
    """What the coordinator writes when the victim's snapshot is committed."""
    (victim,) = signal.victims
    now, identity = "2026-11-21T15:00:00.000000Z", victim.identity
    metadata = {"name": identity.id, "labels": {names.ID: identity.id, names.INDEX: "0"}}
    spec = {
        "uid": signal.uid,
        "identity": {"id": identity.id},
        "podRef": {"name": victim.workload.name, "uid": victim.workload.uid, "nodeName": victim.workload.node},
        "adapter": signal.adapter,
        "holdUID": signal.uid,
        "reason": signal.reason,
        "creationTime": now,
    }
    body = {"apiVersion": names.API_VERSION, "kind": "Checkpoint", "metadata": metadata, "spec": spec}
    await namespace.apply(body)
    snapshot = {"id": identity.id, "generation": 7}
    status = {"phase": "Ready", "step": "Ready", "deadline": now, "snapshot": snapshot}
    patch = {"status": status}
    await namespace.api.patch(names.API_VERSION, "Checkpoint", identity.id, patch, namespace.name, subresource="status")


def _message(workload: Object) -> str:
    """Of the only admission check."""
    return str(workload["status"]["admissionChecks"][0]["message"])


def _has_its_check(workload: Object) -> bool:
    return bool(workload.get("status", {}).get("admissionChecks"))


def _is_suspended(body: Object) -> bool:
    return bool(body["spec"].get("suspend"))


def _is_unmarked(body: Object) -> bool:
    return names.RELEASED_HOLD not in body["metadata"].get("annotations", {})


async def test_a_preemption_is_told_held_released_and_undone(
    groups: Namespace, running: _Running, rights: Path, toolbox: str, audit: Audit
) -> None:
    signal = await _preempt(groups, toolbox, running, "import time; time.sleep(1)")

    assert signal.held is not None
    name = signal.held.name
    assert name in {"bio-1", "bio-2"}
    victim = await groups.get("batch/v1", "Job", name)
    (pod,) = await groups.pods(f"job={name}")
    derived = f"{name}-{victim['metadata']['uid'][:8]}"
    assert pod["metadata"]["annotations"][names.ID] == derived, "by the check's podSetUpdates"
    assert pod["metadata"]["annotations"][names.DERIVED_ID] == "true"
    assert pod["metadata"]["annotations"][names.POLICY] == groups.name
    assert [(one.workload.uid, one.identity.id) for one in signal.victims] == [(pod["metadata"]["uid"], derived)]
    preemptor = await _workload_of(groups, "ml")
    assert signal.reason == "InCohortReclamation"
    assert signal.preemptor == f"{groups.name}/{preemptor['metadata']['name']}"
    assert signal.release_group == preemptor["metadata"]["uid"]

    def is_refused(writes: list[Write]) -> bool:
        return any(one.resource == "jobs" and one.name == name and one.code >= 400 for one in writes)

    await audit.wait_for(is_refused)
    async with _adapting(rights) as restarted:
        assert (await restarted.signal()).uid == signal.uid, "what is pending is told again"

    preemptor = await groups.wait(queues.API, "Workload", preemptor["metadata"]["name"], _has_its_check)
    assert _message(preemptor) == "", "it has no quota yet"
    await _keep_snapshot(groups, signal)
    await running.adapter.release(_released(Verdict.COMMITTED, signal))

    await groups.wait("batch/v1", "Job", name, _is_suspended)
    await running.adapter.release(_released(Verdict.COMMITTED, signal))  # once more is harmless
    await groups.wait("batch/v1", "Job", "ml", has_condition("Complete"))
    (again,) = [pod for pod in await groups.pods(f"job={name}") if not pod["metadata"].get("deletionTimestamp")]
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert again["metadata"]["annotations"][names.ID] == derived, "admitted again through the check"
    assert again["metadata"]["annotations"][names.DERIVED_ID] == "true"
    assert _message(await _workload_of(groups, name)) == f"continues from {derived}/0@7"
    assert _message(await _workload_of(groups, "ml")) == "starts from the beginning"
    await groups.wait("batch/v1", "Job", name, _is_unmarked)
    assert running.reports.empty(), "nothing is told twice, and nothing is taken back"


async def test_a_preemption_of_a_deleted_job_is_taken_back(groups: Namespace, running: _Running, toolbox: str) -> None:
    signal = await _preempt(groups, toolbox, running)
    assert signal.held is not None

    await groups.delete("batch/v1", "Job", signal.held.name)

    async with asyncio.timeout(patient(60)):
        report = await running.reports.get()
    assert isinstance(report, PreemptionCancelled)
    assert report.signal_uid == signal.uid
    await running.adapter.release(_released(Verdict.NOT_NEEDED, signal))


async def test_an_eviction_of_pods_that_do_not_run_is_let_go_at_once(
    groups: Namespace, running: _Running, toolbox: str, audit: Audit
) -> None:
    await groups.apply(_work("stuck", "bio", toolbox, nodeSelector={"no-such": "node"}))
    await groups.pods("job=stuck", phase="Pending")
    workload = (await _workload_of(groups, "stuck"))["metadata"]["name"]

    await groups.api.patch(queues.API, "Workload", workload, {"spec": {"active": False}}, groups.name)

    stopped = await groups.wait("batch/v1", "Job", "stuck", _is_suspended)
    evicted = await groups.get(queues.API, "Workload", workload)
    since = next(one for one in evicted["status"]["conditions"] if one["type"] == "Evicted")["lastTransitionTime"]
    name = hold_name(f"{stopped['metadata']['uid']}@{since}")

    def is_let_go(writes: list[Write]) -> bool:
        marked = {"annotations": {names.RELEASED_HOLD: name}, "uid": stopped["metadata"]["uid"]}
        return any(write.name == "stuck" and (write.body or {}).get("metadata") == marked for write in writes)

    await audit.wait_for(is_let_go)
    assert running.reports.empty()


async def test_a_check_without_its_policy_is_not_active_until_it_exists(
    running: _Running, namespace: Namespace, api: Api
) -> None:
    name = namespace.name
    await api.apply(_check(name))
    await wait_for(api, queues.API, "AdmissionCheck", name, has_condition("Active", "False", reason="BadParametersRef"))
    await api.apply(_policy(name))
    await wait_for(api, queues.API, "AdmissionCheck", name, has_condition("Active"))
    await api.delete(queues.API, "AdmissionCheck", name)
    await wait_for(api, queues.API, "AdmissionCheck", name, is_gone)
    await api.delete(names.API_VERSION, "CheckpointPolicy", name)
