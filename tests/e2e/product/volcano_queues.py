"""Two research groups, bio and ml, that share a cluster by weight, as Volcano's objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace, container, pod

BATCH: Final = "batch.volcano.sh/v1alpha1"
SCHEDULING: Final = "scheduling.volcano.sh/v1beta1"
SCHEDULER: Final = "system:serviceaccount:volcano-system:volcano-scheduler"
HALF_A_NODE: Final = "3500m"
"""Of nodes with 8 CPUs: two pods fill one, but for what the system takes."""

RECLAIMS: Final = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
"""The chart's own tiers, with the actions that preempt, and without `overcommit`, under which a full cluster never
reclaims."""


CAPACITY: Final = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: capacity
    enableHierarchy: true
  - name: nodeorder
  - name: binpack
"""
"""Queues own what they deserve, and are children of one another."""


@asynccontextmanager
async def groups(
    namespace: Namespace, *names: str, annotations: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """A Queue per group (bio and ml), all of equal weight; names are behind the namespace's."""
    async with queues(namespace, {name: {"weight": 1} for name in names or ("bio", "ml")}, annotations=annotations):
        yield


@asynccontextmanager
async def queues(
    namespace: Namespace, specs: Mapping[str, Mapping[str, Any]], *, annotations: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Queues with these specs, parents first; names, also of parents, are behind the namespace's."""
    for name, spec in specs.items():
        own = f"{namespace.name}-{name}"
        parent = {"parent": f"{namespace.name}-{spec['parent']}"} if "parent" in spec else {}
        body = {
            "apiVersion": SCHEDULING,
            "kind": "Queue",
            "metadata": {"name": own, "annotations": dict(annotations or {})},
            "spec": {"reclaimable": True, **spec, **parent},
        }
        await namespace.api.apply(body)
        await namespace.wait(SCHEDULING, "Queue", own, _is_open)
    try:
        yield
    finally:
        for name in reversed(list(specs)):
            await namespace.api.delete(SCHEDULING, "Queue", f"{namespace.name}-{name}")


def _is_open(queue: Object) -> bool:
    return bool(queue.get("status", {}).get("state") == "Open")


def vcjob(
    name: str,
    queue: str,
    namespace: Namespace,
    image: str,
    *command: str,
    pods: int,
    at_least: int = 1,
    priority: str | None = None,
    env: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Volcano job of one task `sim`; `spec` is laid over its own."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    main = container(image, *command, resources={"requests": {"cpu": HALF_A_NODE}}, env=variables)
    fields: dict[str, Any] = {} if priority is None else {"priorityClassName": priority}
    template = {"metadata": {"labels": {"job-name": name}}, "spec": pod(name, main, **fields)["spec"]}
    return {
        "apiVersion": BATCH,
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": at_least,
            **fields,
            "queue": f"{namespace.name}-{queue}",
            "tasks": [{"name": "sim", "replicas": pods, "template": template}],
            **spec,
        },
    }


async def completed(namespace: Namespace, name: str) -> Object:
    """Wait until a job is over; it must be complete."""
    over = await namespace.wait(BATCH, "Job", name, lambda body: _phase(body) in {"Completed", "Failed"}, within=180)
    assert _phase(over) == "Completed", over["status"]
    return over


def _phase(body: Object) -> str:
    return str(body.get("status", {}).get("state", {}).get("phase", ""))
