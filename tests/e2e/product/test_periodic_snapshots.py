"""Pods are saved at the interval of their policy, and keep running."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.model.objects.names import API_VERSION, ID, POLICY
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product import parts
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.policies import own_policy

pytestmark = [pytest.mark.any_shape, pytest.mark.exhaustive]

_OFTEN = {"intervalSeconds": 2, "maxFrozenPercent": 50, "retention": {"keepLast": 2}}


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


async def test_running_pod_is_saved_again_and_again_and_misses_nothing(
    namespace: Namespace, toolbox: str, installed: Product, api: Api
) -> None:
    del installed
    async with own_policy(namespace, **_OFTEN) as policy, Following.of(namespace, "md") as md:
        await namespace.apply(_job(toolbox, policy))
        await asyncio.wait_for(begun(md, 0), patient(120))
        found = await _saved(namespace, 3)
        assert {one["spec"]["reason"] for one in found} == {"Interval"}
        assert len(md.pods[0]) == 1
        counted = len(md.lines(0))
        await asyncio.wait_for(md.said(0, counted + 5), patient(60))
        numbers = list(map(int, md.lines(0)))
        assert numbers == list(range(len(numbers)))
    await parts.whole(api)
