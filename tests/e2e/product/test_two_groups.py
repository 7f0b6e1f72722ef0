"""Two research groups, one cohort: bio borrows, ml reclaims, and nothing of bio's work is lost."""

from __future__ import annotations

import asyncio

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job

_COUNTS = 200
_COUNT = f"""
import time
for number in range({_COUNTS}):
    print(number, flush=True)
    time.sleep(0.1)
"""


def _phase(phase: str) -> object:
    return lambda body: body.get("status", {}).get("phase") == phase


def _is_over(body: Object) -> bool:
    return has_condition("Complete")(body) or has_condition("Failed")(body)


async def test_reclaimed_job_continues_where_it_stopped(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, "python3", "-c", _COUNT, pods=4))
        for index in range(4):
            await asyncio.wait_for(bio.said(index, 20), 120)

        await namespace.apply(indexed_job("train", "ml", toolbox, "python3", "-c", "print('trained')", pods=2))
        await namespace.wait("batch/v1", "Job", "train", has_condition("Complete"), within=120)

        over = await namespace.wait("batch/v1", "Job", "md", _is_over, within=180)
        await asyncio.wait_for(bio.read(), 60)

        assert has_condition("Complete")(over), over["status"]
        assert over["status"].get("failed", 0) == 0
        for index in range(4):
            assert bio.lines(index) == [str(number) for number in range(_COUNTS)], f"index {index}"
        checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
        assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}
        assert len(checkpoints) == 4
