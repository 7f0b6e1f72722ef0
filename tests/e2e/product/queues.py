"""Two research groups, bio and ml, that share a cluster half and half, as Kueue's objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.namespace import Namespace, container, job

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
GROUPS = ("bio", "ml")


@asynccontextmanager
async def groups(namespace: Namespace, *, quota: str = "400m", check: str | None = "checkpoint-restore") -> AsyncIterator[None]:
    """A ClusterQueue and a LocalQueue per group, of one cohort; they name our AdmissionCheck."""
    api, flavor = namespace.api, namespace.name
    await api.apply({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": flavor}})
    for name in GROUPS:
        await api.apply(_cluster_queue(name, namespace, quota, check))
        await namespace.apply(_local_queue(name, namespace))
        await namespace.wait(API, "LocalQueue", name, has_condition("Active"))
    try:
        yield
    finally:
        for name in GROUPS:
            await api.delete(API, "ClusterQueue", f"{flavor}-{name}")
        await api.delete(API, "ResourceFlavor", flavor)


def _cluster_queue(name: str, namespace: Namespace, quota: str, check: str | None) -> Object:
    flavor = {"name": namespace.name, "resources": [{"name": "cpu", "nominalQuota": quota}]}
    spec: dict[str, Any] = {
        "cohortName": namespace.name,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}],
    }
    if check is not None:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check}]}
    return {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": f"{namespace.name}-{name}"}, "spec": spec}


def _local_queue(name: str, namespace: Namespace) -> Object:
    cluster_queue = f"{namespace.name}-{name}"
    return {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": name},
        "spec": {"clusterQueue": cluster_queue},
    }


def indexed_job(
    name: str,
    queue: str,
    image: str,
    *command: str,
    pods: int = 1,
    cpu: str = "200m",
    env: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """An Indexed Job in a queue that fails as soon as one of its pods does."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    main = container(image, *command, resources={"requests": {"cpu": cpu}}, env=variables)
    fields = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": True,
    }
    return job(name, main, labels={QUEUE_LABEL: queue}, fields=fields, **spec)
