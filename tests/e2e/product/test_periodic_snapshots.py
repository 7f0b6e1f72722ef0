"""Pods that are saved while they run continue when they, or their nodes, are lost; and never beside themselves."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.model.objects.names import API_VERSION, ID, POLICY
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product import parts
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.lost_nodes import node_of_store, out_of_service, switched_off
from tests.e2e.product.policies import OFTEN, own_policy

pytestmark = [pytest.mark.any_shape, pytest.mark.exhaustive]


def _job(image: str, policy: str) -> Object:
    main = container(image, *counting(counts=None, mebibytes=8), resources={"requests": {"cpu": "100m"}})
    indexed = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 6}
    body = job("md", main, fields=indexed, restartPolicy="Never", terminationGracePeriodSeconds=3)
    body["spec"]["template"]["metadata"]["annotations"] = {ID: "md", POLICY: policy}
    return body


async def _saved(namespace: Namespace, generation: int) -> list[Object]:
    """Wait until this generation is restorable; all Checkpoints."""

    def is_saved(found: list[Object]) -> bool:
        shown = (one.get("status", {}) for one in found)
        ready = (status["snapshot"]["generation"] for status in shown if status.get("phase") == "Ready")
        return max(ready, default=0) >= generation

    return await wait_for_all(namespace.api, API_VERSION, "Checkpoint", is_saved, namespace=namespace.name)


async def _enough(namespace: Namespace, pod: str) -> None:
    await namespace.exec(pod, "touch", "/tmp/enough")
    await namespace.wait("batch/v1", "Job", "md", lambda body: bool(body["status"].get("succeeded")), within=60)


async def test_running_pod_is_saved_and_its_successor_waits_for_its_end(
    namespace: Namespace, toolbox: str, installed: Product, api: Api
) -> None:
    del installed
    async with own_policy(namespace, **OFTEN) as policy, Following.of(namespace, "md") as md:
        await namespace.apply(_job(toolbox, policy))
        await asyncio.wait_for(begun(md, 0), patient(120))
        found = await _saved(namespace, 4)
        assert {one["spec"]["reason"] for one in found} == {"Interval"}
        assert len(md.pods[0]) == 1
        numbers = list(map(int, md.lines(0)))
        assert numbers == list(range(len(numbers)))
        await namespace.delete("v1", "Pod", md.pods[0][0])
        await asyncio.wait_for(begun(md, 0, counts=len(md.lines(0)) + 40), patient(180))
        first, second = (list(map(int, lines)) for lines in md.by_pod(0))
        assert 0 < second[0] <= first[-1] + 1
        assert second == list(range(second[0], second[0] + len(second)))
        await _enough(namespace, md.pods[0][1])
    await parts.whole(api)


async def test_pod_of_a_dead_node_continues_from_its_last_snapshot_once_the_node_is_fenced(
    namespace: Namespace, toolbox: str, release: Product, api: Api
) -> None:
    await release.ensure()  # with the adapter `kubernetes`, the Job has no successor before the taint
    async with own_policy(namespace, **OFTEN) as policy, Following.of(namespace, "md") as md:
        async with cordoned(namespace, await node_of_store(namespace)):
            await namespace.apply(_job(toolbox, policy))
            await asyncio.wait_for(begun(md, 0), patient(120))
        await _saved(namespace, 2)
        old, node = md.pods[0][0], md.nodes[0][0]
        async with switched_off(namespace, node):
            await namespace.delete("v1", "Pod", old, grace=0)
            (waiting,) = await namespace.pods("job-name=md", phase="Pending")
            successor = waiting["metadata"]["name"]
            (message,) = set(await wait_for_messages(namespace, successor, "RestoreDelayed"))
            assert f"on node {node}, which is not ready" in message
            async with out_of_service(namespace, node):
                await asyncio.wait_for(begun(md, 0, counts=len(md.lines(0)) + 40), patient(180))
                second = list(map(int, md.by_pod(0)[-1]))
                assert second[0] > 0
                assert second == list(range(second[0], second[0] + len(second)))
                await _enough(namespace, successor)
    await parts.whole(api)
