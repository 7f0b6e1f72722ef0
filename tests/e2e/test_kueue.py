"""Kueue from its own chart works here as anywhere: it admits, lets borrow, and preempts to reclaim."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace, container, job

_API = "kueue.x-k8s.io/v1beta2"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_CONTROLLER = "system:serviceaccount:kueue-system:kueue-controller-manager"


def _cluster_queue(name: str, namespace: Namespace, flavor: str) -> Object:
    quota = {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": "400m"}]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    return {
        "apiVersion": _API,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{namespace.name}-{name}"},
        "spec": {
            "cohortName": namespace.name,
            "namespaceSelector": selector,
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
        },
    }


def _local_queue(name: str, namespace: Namespace) -> Object:
    cluster_queue = f"{namespace.name}-{name}"
    metadata = {"name": name}
    return {"apiVersion": _API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": cluster_queue}}


@pytest_asyncio.fixture(loop_scope="session")
async def groups(namespace: Namespace, kueue: None) -> AsyncIterator[Namespace]:
    """Two groups, bio and ml, that share 800m of CPU half and half."""
    api, flavor, names = namespace.api, namespace.name, ("bio", "ml")
    await api.apply({"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": flavor}})
    for name in names:
        await api.apply(_cluster_queue(name, namespace, flavor))
        await namespace.apply(_local_queue(name, namespace))
    yield namespace
    for name in names:
        await api.delete(_API, "ClusterQueue", f"{flavor}-{name}")
    await api.delete(_API, "ResourceFlavor", flavor)


def _work(name: str, queue: str, image: str, program: str) -> Object:
    """Two pods that take a whole group's share."""
    main = container(image, "python3", "-c", program, resources={"requests": {"cpu": "200m"}})
    fields = {"parallelism": 2, "completions": 2, "suspend": True}
    return job(name, main, labels={_QUEUE_LABEL: queue}, fields=fields)


async def test_reclaim_preempts_the_group_that_borrows(groups: Namespace, toolbox: str, audit: Audit) -> None:
    endless = "import time; time.sleep(10_000)"
    await groups.apply(_work("bio-1", "bio", toolbox, endless))
    await groups.pods("job=bio-1", count=2)
    await groups.apply(_work("bio-2", "bio", toolbox, endless))
    await groups.pods("job=bio-2", count=2)

    await groups.apply(_work("ml", "ml", toolbox, "import time; time.sleep(1)"))

    await groups.wait("batch/v1", "Job", "ml", has_condition("Complete"))
    suspended = [
        write
        for write in audit.writes(resource="jobs", namespace=groups.name, user=_CONTROLLER)
        if write.verb in {"patch", "update"} and write.body.get("spec", {}).get("suspend")
    ]
    victims = {write.name for write in suspended}
    assert len(victims) == 1, "one of bio's Jobs was preempted, and only one"
    assert victims < {"bio-1", "bio-2"}
    await groups.pods(f"job={victims.pop()}", count=2)  # admitted again when ml has ended
