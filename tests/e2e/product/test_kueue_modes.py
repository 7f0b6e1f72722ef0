"""Jobs that Kueue admits in part, changes while they run, or places by topology: their work goes on as any other's."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import API, indexed_job
from tests.e2e.product.reclaiming import completed
from tests.e2e.product.test_kueue_kinds import of_priority, one_queue, preempt

pytestmark = [pytest.mark.any_shape, pytest.mark.exhaustive]

_LEVEL: Final = "kubernetes.io/hostname"


def _job(namespace: Namespace, image: str, pods: int, annotations: dict[str, str], **fields: Any) -> Object:
    labels = of_priority(namespace, "low")
    body = indexed_job("md", "bio", image, *counting(), pods=pods, labels=labels, fields=fields)
    body["metadata"]["annotations"] = annotations
    return body


async def test_pods_beyond_a_partial_admission_continue_when_their_turn_comes(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with one_queue(namespace), Following.of(namespace, "md") as following:
        await namespace.apply(_job(namespace, toolbox, 4, {"kueue.x-k8s.io/job-min-parallelism": "2"}))
        await begun(following, *range(4))

        half = indexed_job("half", "bio", toolbox, *counting(), pods=2, labels=of_priority(namespace, "high"))
        await namespace.apply(half)

        await namespace.wait("batch/v1", "Job", "half", has_condition("Complete"), within=150)
        await completed(namespace, "md")
        await asyncio.wait_for(following.read(), patient(60))
        assert [following.lines(index) for index in range(4)] == [ALL] * 4


async def test_elastic_job_is_saved_at_the_size_that_it_has_now(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with one_queue(namespace), Following.of(namespace, "md") as following:
        await namespace.apply(_job(namespace, toolbox, 2, {"kueue.x-k8s.io/elastic-job": "true"}, completions=3))
        await begun(following, 0, 1)
        await namespace.api.patch("batch/v1", "Job", "md", {"spec": {"parallelism": 3}}, namespace.name)
        await begun(following, 2)

        await preempt(namespace, toolbox)

        await completed(namespace, "md")
        await asyncio.wait_for(following.read(), patient(60))
        assert [following.lines(index) for index in range(3)] == [ALL] * 3
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert len(checkpoints) == 3


async def test_job_that_kueue_places_by_topology_continues(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    api, name = namespace.api, namespace.name
    async with one_queue(namespace), Following.of(namespace, "md") as following:
        levels = {"levels": [{"nodeLabel": _LEVEL}]}
        await api.apply({"apiVersion": API, "kind": "Topology", "metadata": {"name": name}, "spec": levels})
        flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": name}
        await api.patch(API, "ResourceFlavor", name, {"spec": flavor})
        body = _job(namespace, toolbox, 2, {})
        body["spec"]["template"]["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": _LEVEL}
        await namespace.apply(body)
        await begun(following, 0, 1)

        await preempt(namespace, toolbox)

        await completed(namespace, "md")
        await asyncio.wait_for(following.read(), patient(60))
        assert [following.lines(index) for index in (0, 1)] == [ALL, ALL]
        assert following.nodes[0][-1] == following.nodes[1][-1], "as the topology asks"
        (workload,) = [
            one
            for one in await api.objects(API, "Workload", name)
            if one["metadata"]["ownerReferences"][0]["name"] == "md"
        ]
        assert workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
