"""Pods of plain Jobs and Deployments in Volcano's queues, which nothing tells apart, continue each its own work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import PROTECT
from cedana_sched_volcano.objects import QUEUE_NAME
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.patience import patient
from tests.e2e.product.counting import by_name, counting_under_a_name
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.volcano_queues import HALF_A_NODE, groups, reclaim

pytestmark = pytest.mark.shape("volcano")

PODS = 4


def job(template: Object) -> Object:
    """One that does not count evictions, which Kubernetes counts as failures."""
    template["spec"]["restartPolicy"] = "Never"
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {"parallelism": PODS, "completions": PODS, "podFailurePolicy": {"rules": [evicted]}, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "md"}, "spec": spec}


def deployment(template: Object) -> Object:
    spec = {"replicas": PODS, "selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "md"}, "spec": spec}


@pytest_asyncio.fixture(loop_scope="session")
async def bio(namespace: Namespace, installed_with_volcano: Product) -> AsyncIterator[Following]:
    """What the pods of md say, in a queue that protects all of its own."""
    async with groups(namespace, annotations={PROTECT: "true"}), Following.of(namespace, "md", label="app") as bio:
        yield bio


@pytest.mark.parametrize("controller", [pytest.param(job, marks=pytest.mark.exhaustive), deployment])
async def test_each_pod_continues_its_own_work(
    controller: Callable[[Object], Object], namespace: Namespace, toolbox: str, bio: Following
) -> None:
    main = container(toolbox, *counting_under_a_name(), resources={"requests": {"cpu": HALF_A_NODE}})
    metadata = {"labels": {"app": "md"}, "annotations": {QUEUE_NAME: f"{namespace.name}-bio"}}
    spec = pod("any", main, schedulerName="volcano", restartPolicy="Always")["spec"]
    body = controller({"metadata": metadata, "spec": spec})
    await namespace.apply(body)
    await asyncio.wait_for(bio.said(0, PODS * 20), patient(120))
    await reclaim(namespace, toolbox)

    await wait_for_all(namespace.api, "v1", "Pod", _all_run, namespace=namespace.name, selector="app=md", within=120)
    await asyncio.wait_for(bio.said(0, len(bio.lines(0)) + PODS * 50), patient(120))
    await namespace.delete(body["apiVersion"], body["kind"], "md")
    await asyncio.wait_for(bio.read(), patient(60))

    returned = bio.by_pod(0)[PODS:]
    assert len(returned) >= 2, "as many as ml needed; a hold that outlasts Volcano's ten attempts may cost others"
    assert all(returned), "each of them goes on"
    counts = by_name(bio.lines(0))
    assert list(counts.values()) == [list(range(len(numbers))) for numbers in counts.values()]
    assert len(counts) == PODS, "whoever came back went on with one's work, and nobody began anew"


def _all_run(pods: list[Object]) -> bool:
    there = [one for one in pods if "deletionTimestamp" not in one["metadata"]]
    return len(there) == PODS and all(one["status"].get("phase") == "Running" for one in there)
