"""Whoever has the coordinator's token passes no AdmissionChecks but ours, and admits no Workload.

The policies are those of the product as it is installed. Nobody else is narrowed: what is refused here, an admin does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.model.objects import names
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import API, groups
from tests.e2e.product.rendering import NAMESPACE, RELEASE

pytestmark = pytest.mark.any_shape

OURS = "checkpoint-restore"
"""The chart's AdmissionCheck."""
SINCE = "2026-11-21T12:00:00Z"
WORKLOAD, QUEUE = "workloads.kueue.x-k8s.io/held", "clusterqueues.kueue.x-k8s.io"
GROUP = "rbac.authorization.k8s.io"
PASSES, DECLARES = "passes checks of a Workload that are pending", "whether its own checks are active, and nothing else"
TAKES, LEAVES = "takes checks out of ClusterQueues, and writes nothing else", "to its own controller"
METADATA = "writes annotations and labels of its own only"


class Coordinator:
    """Whoever has its token; `theirs` is an AdmissionCheck of somebody else, `queue` names it, and ours."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.theirs = f"{namespace.name}-theirs"
        self.queue = f"{namespace.name}-bio"

    async def patches(self, what: str, patch: Object, *options: str) -> None:
        account = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}-coordinator"
        await self._namespace.kubectl(*_patch(what, patch, *options), account)

    async def may_not(self, why: str, what: str, patch: Object, *options: str) -> None:
        with pytest.raises(ClusterError) as caught:
            await self.patches(what, patch, *options)
        assert why in str(caught.value), patch
        await self._namespace.kubectl(*_patch(what, patch, *options))

    def checks(self, ours: Object | None = None, theirs: Object | None = None) -> Object:
        """The status of the Workload with these fields of its checks."""
        named = ((OURS, ours or {}), (self.theirs, theirs or {}))
        states = [{"name": name, **_PENDING, **fields} for name, fields in named]
        return {"status": {"admissionChecks": states}}

    def strategy(self, *checks: str) -> Object:
        """The spec of the queue with these checks."""
        return {"admissionChecksStrategy": {"admissionChecks": [{"name": one} for one in checks]} if checks else None}


_PENDING = {"state": "Pending", "lastTransitionTime": SINCE, "message": ""}
STATUS = "--subresource=status"


def _patch(what: str, patch: Object, *options: str) -> tuple[str, ...]:
    return ("patch", what, "--type=merge", f"--patch={json.dumps(patch)}", "--dry-run=server", *options)


def _ready(**annotations: str) -> Object:
    updates = [{"name": "main", "annotations": annotations}]
    return {"state": "Ready", "message": "well", "lastTransitionTime": "2026-11-21T13:00:00Z", "podSetUpdates": updates}


def _workload() -> Object:
    """In no queue: Kueue leaves it alone."""
    containers = [{"name": "c", "image": "registry.invalid/tenants:1"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    spec = {"podSets": [{"name": "main", "count": 1, "template": template}]}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": "held"}, "spec": spec}


def _rights_of_the_uninstallation(name: str) -> list[Object]:
    """The hook's to ClusterQueues, which the coordinator's account has while it runs; kubectl reads what it patches."""
    rule = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["clusterqueues"], "verbs": ["get", "patch"]}
    reads = {**rule, "resources": ["workloads/status", "admissionchecks/status"], "verbs": ["get"]}
    role = {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": f"{RELEASE}-coordinator", "namespace": NAMESPACE}
    reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    return [
        {**role, "rules": [rule, reads]},
        {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


@pytest_asyncio.fixture(loop_scope="session")
async def coordinator(namespace: Namespace, api: Api, installed_with_kueue: Product) -> AsyncIterator[Coordinator]:
    """A Workload that waits for our check and another one's, and a ClusterQueue that names both."""
    found = Coordinator(namespace)
    rights = _rights_of_the_uninstallation(f"{namespace.name}-queues")
    check = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": found.theirs}}
    check["spec"] = {"controllerName": "example.org/others"}
    async with groups(namespace):
        try:
            for body in (check, *rights):
                await api.apply(body)
            spec = {"spec": found.strategy(OURS, found.theirs)}
            await api.patch(API, "ClusterQueue", found.queue, spec)
            await namespace.apply(_workload())
            await api.patch(API, "Workload", "held", found.checks(), namespace.name, subresource="status")
            passed = found.checks(theirs={"state": "Ready"})
            await wait_until_refused(lambda: found.patches(WORKLOAD, passed, STATUS), LEAVES)
            yield found
        finally:
            for body in (check, *rights):
                await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


async def test_it_passes_our_check_of_a_workload_and_writes_no_more(coordinator: Coordinator) -> None:
    own = _ready(**{names.ID: "sim", names.DERIVED_ID: "true", names.POLICY: "hourly"})
    await coordinator.patches(WORKLOAD, coordinator.checks(own), STATUS)
    await coordinator.patches(WORKLOAD, coordinator.checks({**own, "podSetUpdates": []}), STATUS)
    await coordinator.patches(WORKLOAD, coordinator.checks({"message": "waits for an admin"}), STATUS)
    theirs = coordinator.checks(own, _ready())
    await coordinator.may_not(LEAVES, WORKLOAD, theirs, STATUS)
    selected = {**own, "podSetUpdates": [{"name": "main", "nodeSelector": {"a": "b"}}]}
    for wrong in ({**own, "state": "Rejected"}, {**own, "state": "Retry"}, _ready(a="b"), selected):
        await coordinator.may_not(PASSES, WORKLOAD, coordinator.checks(wrong), STATUS)
    evicted = {"type": "Evicted", "status": "True", "reason": "a", "message": "b", "lastTransitionTime": SINCE}
    for more in ({"conditions": [evicted]}, {"requeueState": {"count": 3}}):
        wrong = {"status": {**coordinator.checks(own)["status"], **more}}
        await coordinator.may_not(PASSES, WORKLOAD, wrong, STATUS)


async def test_it_declares_our_check_active_and_no_other(coordinator: Coordinator, api: Api) -> None:
    before = (await api.get(API, "AdmissionCheck", OURS)).get("status", {}).get("conditions", [])
    active = {"type": "Active", "status": "False", "reason": "a", "message": "b", "lastTransitionTime": SINCE}
    others = [one for one in before if one["type"] != "Active"]
    ours, theirs = (f"admissionchecks.kueue.x-k8s.io/{name}" for name in (OURS, coordinator.theirs))
    await coordinator.patches(ours, {"status": {"conditions": [*others, active]}}, STATUS)
    more = {"status": {"conditions": [*others, active, {**active, "type": "Other"}]}}
    await coordinator.may_not(DECLARES, ours, more, STATUS)
    await coordinator.may_not(DECLARES, theirs, {"status": {"conditions": [active]}}, STATUS)


async def test_it_takes_our_check_out_of_queues_and_no_other(coordinator: Coordinator) -> None:
    queue = f"{QUEUE}/{coordinator.queue}"
    without = coordinator.strategy(coordinator.theirs)
    await coordinator.patches(queue, {"spec": without})
    await coordinator.may_not(LEAVES, queue, {"spec": coordinator.strategy(OURS)})
    await coordinator.may_not(LEAVES, queue, {"spec": coordinator.strategy()})
    more = coordinator.strategy(OURS, coordinator.theirs, "more")
    for wrong in (more, {**without, "cohortName": "mine"}, {**without, "stopPolicy": "Hold"}):
        await coordinator.may_not(TAKES, queue, {"spec": wrong})
    for metadata in ({"labels": {"a": "b"}}, {"finalizers": ["a.b/c"]}):
        await coordinator.may_not(METADATA, queue, {"spec": without, "metadata": metadata})
