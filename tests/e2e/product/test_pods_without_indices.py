"""The pods of a Job without indices, which nothing tells apart: each snapshot is continued once, and none again."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import by_name, counting_under_a_name
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = pytest.mark.any_shape

COUNTS = 120


async def test_each_pod_of_a_plain_job_continues_its_own_work(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    plain = {"completionMode": "NonIndexed", "parallelism": 3, "completions": 4}
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting_under_a_name(COUNTS), fields=plain))
        await asyncio.wait_for(bio.said(0, 60), patient(120))
        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

    counts = by_name(bio.lines(0))
    assert list(counts.values()) == [list(range(COUNTS))] * 4, "three that were preempted, and one that came after them"
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert len({one["spec"]["identity"]["index"] for one in checkpoints}) == 3
    assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}
