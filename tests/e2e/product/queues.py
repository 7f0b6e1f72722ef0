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
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
HALF_EACH: Mapping[str, str] = {"bio": "400m", "ml": "400m"}


@asynccontextmanager
async def groups(
    namespace: Namespace,
    quotas: Mapping[str, str] = HALF_EACH,
    *,
    resource: str = "cpu",
    check: str | None = "checkpoint-restore",
) -> AsyncIterator[None]:
    """A ClusterQueue and a LocalQueue per group, of one cohort; they name our AdmissionCheck, or none."""
    api, flavor = namespace.api, namespace.name
    await api.apply({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": flavor}})
    for name, quota in quotas.items():
        await api.apply(_cluster_queue(name, namespace, resource, quota, check))
        await namespace.apply(_local_queue(name, namespace))
        await namespace.wait(API, "LocalQueue", name, has_condition("Active"))
    try:
        yield
    finally:
        for name in quotas:
            await api.delete(API, "ClusterQueue", f"{flavor}-{name}")
        await api.delete(API, "ResourceFlavor", flavor)


def _cluster_queue(name: str, namespace: Namespace, resource: str, quota: str, check: str | None) -> Object:
    flavor = {"name": namespace.name, "resources": [{"name": resource, "nominalQuota": quota}]}
    spec: dict[str, Any] = {
        "cohortName": namespace.name,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}],
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


@asynccontextmanager
async def priorities(namespace: Namespace, **values: int) -> AsyncIterator[None]:
    """WorkloadPriorityClasses of these names behind the namespace's, as `PRIORITY_LABEL` names them."""
    api = namespace.api
    for name, value in values.items():
        metadata = {"name": f"{namespace.name}-{name}"}
        await api.apply({"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": value})
    try:
        yield
    finally:
        for name in values:
            await api.delete(API, "WorkloadPriorityClass", f"{namespace.name}-{name}")


def indexed_job(
    name: str,
    queue: str,
    image: str,
    *command: str,
    pods: int = 1,
    cpu: str = "200m",
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """An Indexed Job in a queue that fails as soon as one of its pods does; `fields` are laid over the Job's."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    main = container(image, *command, resources={"requests": {"cpu": cpu}}, env=variables)
    indexed = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": True,
    }
    return job(name, main, labels={QUEUE_LABEL: queue, **(labels or {})}, fields={**indexed, **(fields or {})}, **spec)
