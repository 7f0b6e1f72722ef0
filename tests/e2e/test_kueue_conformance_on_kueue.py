"""The Kueue adapter keeps the contract beside a real Kueue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from cedana_sched.model.objects import names
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.e2e.kueue_stage import HELD, KUEUE, RealKueueStage

pytestmark = pytest.mark.any_shape

_ADMISSION = "admissionregistration.k8s.io/v1"
_CONTROLLER = "system:serviceaccount:kueue-system:kueue-controller-manager"
_NAME = "conformance"
_HELD = f"""
!(object.spec.suspend == true && oldObject.spec.suspend != true)
|| request.userInfo.username != '{_CONTROLLER}'
|| '{names.RELEASED}' in object.metadata.?annotations.orValue({{}})
"""


def _policy() -> tuple[Object, Object]:
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    constraints = {"resourceRules": [rule], "objectSelector": {"matchLabels": {HELD: "true"}}}
    spec = {"matchConstraints": constraints, "validations": [{"expression": _HELD, "message": "held by the test"}]}
    binding = {"policyName": _NAME, "validationActions": ["Deny"]}
    return (
        {"apiVersion": _ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": _NAME}, "spec": spec},
        {
            "apiVersion": _ADMISSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": _NAME},
            "spec": binding,
        },
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hold(cluster: Cluster, api: Api, kueue: None) -> AsyncIterator[None]:
    """In force."""
    bodies = _policy()
    for body in bodies:
        await api.apply(body)
    async with Namespace.created(cluster, api, _NAME) as namespace:
        await namespace.apply(job("probe", container("none"), labels={HELD: "true"}, fields={"parallelism": 0}))
        change = '--patch={"spec":{"suspend":true}}'
        suspends = ("patch", "job/probe", "--dry-run=server", f"--as={_CONTROLLER}", change)
        await wait_until_refused(lambda: namespace.kubectl(*suspends), "held by the test")
    yield
    for body in reversed(bodies):
        await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


def _queue(name: str, namespace: str) -> Object:
    """A group's half of 800m of CPU, and the way in and out of it."""
    quota = {"name": namespace, "resources": [{"name": "cpu", "nominalQuota": "400m"}]}
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "cohortName": namespace,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
        },
    }


@pytest_asyncio.fixture(loop_scope="session")
async def queues(namespace: Namespace, kinds: None, hold: None) -> AsyncIterator[Namespace]:
    """Two groups that may borrow from each other."""
    api, name = namespace.api, namespace.name
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}}
    bodies = [flavor, *(_queue(group, name) for group in ("bio", "ml"))]
    for body in bodies:
        await api.apply(body)
    for group in ("bio", "ml"):
        spec = {"clusterQueue": f"{name}-{group}"}
        await namespace.apply({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": group}, "spec": spec})
    yield namespace
    for body in reversed(bodies):
        await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


class TestKueueOnKueue(AdapterConformance):
    @pytest.fixture
    def stage(self, queues: Namespace, toolbox: str) -> Stage:
        return RealKueueStage(queues, toolbox)
