"""Two research groups, bio and ml, that share a cluster by weight, as Volcano's objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import tenacity

from tests.cluster.api.client import Api, Object
from tests.cluster.fixtures.namespace import Namespace, container, pod

BATCH: Final = "batch.volcano.sh/v1alpha1"
SCHEDULING: Final = "scheduling.volcano.sh/v1beta1"
SCHEDULER: Final = "system:serviceaccount:volcano-system:volcano-scheduler"
HALF_A_NODE: Final = "3500m"
"""Of nodes with 8 CPUs: two pods fill one, but for what the system takes."""
WHOLE_NODE: Final = "7"
HOST: Final = "kubernetes.io/hostname"

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
            await _delete_queue(namespace.api, f"{namespace.name}-{name}")


@tenacity.retry(
    retry=tenacity.retry_if_exception_message(match=r"(?s).*child queues"),
    wait=tenacity.wait_fixed(0.5),
    stop=tenacity.stop_after_delay(60),
    reraise=True,
)
async def _delete_queue(api: Api, name: str) -> None:
    """Volcano's webhook looks into a cache, in which children are there a moment longer."""
    await api.delete(SCHEDULING, "Queue", name)


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
    cpu: str = HALF_A_NODE,
    priority: str | None = None,
    env: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Volcano job of one task `sim`; `spec` is laid over its own."""
    fields: dict[str, Any] = {} if priority is None else {"priorityClassName": priority}
    sim = task("sim", name, image, *command, pods=pods, cpu=cpu, env=env, **fields)
    body = vcjob_of(name, queue, namespace, sim, minAvailable=at_least, **{**fields, **spec})
    body["metadata"]["annotations"] = dict(annotations or {})
    return body


def task(
    name: str,
    job: str,
    image: str,
    *command: str,
    pods: int = 1,
    cpu: str = HALF_A_NODE,
    env: Mapping[str, str] | None = None,
    **fields: Any,
) -> Object:
    """A task of a job; `fields` are laid over its pods' spec."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    main = container(image, *command, resources={"requests": {"cpu": cpu}}, env=variables)
    template = {"metadata": {"labels": {"job-name": job}}, "spec": pod(job, main, **fields)["spec"]}
    return {"name": name, "replicas": pods, "template": template}


def vcjob_of(name: str, queue: str, namespace: Namespace, *tasks: Object, **spec: Any) -> Object:
    """A Volcano job of these tasks; `spec` is laid over its own."""
    own = {"schedulerName": "volcano", "queue": f"{namespace.name}-{queue}", "tasks": list(tasks)}
    return {"apiVersion": BATCH, "kind": "Job", "metadata": {"name": name}, "spec": {**own, **spec}}


def on(labels: Mapping[str, str], job: Object) -> Object:
    """The same job, on nodes with these labels only."""
    for one in job["spec"]["tasks"]:
        one["template"]["spec"]["nodeSelector"] = dict(labels)
    return job


async def reclaim(namespace: Namespace, image: str, name: str = "train") -> None:
    """Let ml take back its half of the cluster; returns when it is done with it."""
    await namespace.apply(vcjob(name, "ml", namespace, image, "true", pods=2, at_least=2))
    await completed(namespace, name)


async def take(node: str, namespace: Namespace, image: str, priority: str, name: str = "soon") -> None:
    """Have bio run a job of this priority that needs the whole of a node; returns when it is complete."""
    soon = vcjob(name, "bio", namespace, image, "true", pods=1, cpu=WHOLE_NODE, priority=priority)
    await namespace.apply(on({HOST: node}, soon))
    await completed(namespace, name)


async def completed(namespace: Namespace, name: str) -> Object:
    """Wait until a job is over; it must be complete."""
    over = await namespace.wait(BATCH, "Job", name, lambda body: _phase(body) in {"Completed", "Failed"}, within=180)
    assert _phase(over) == "Completed", over["status"]
    return over


def _phase(body: Object) -> str:
    return str(body.get("status", {}).get("state", {}).get("phase", ""))
