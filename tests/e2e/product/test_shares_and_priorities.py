"""Whatever makes Kueue preempt, the work of its victims goes on: fair sharing, and priorities inside one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.addons.catalog import install
from tests.cluster.addons.kueue import Kueue
from tests.cluster.api.waiting import has_condition
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product.counting import ALL, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.history import Eviction
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import PRIORITY_LABEL, groups, indexed_job, priorities
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = pytest.mark.any_shape

_NOTHING_OF_THEIR_OWN = {"bio": "0", "ml": "0", "spare": "800m"}
"""Both groups borrow all that they use, so that shares alone decide who gives way."""
_SHARES = {"fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}}


@pytest_asyncio.fixture(loop_scope="session")
async def fair_sharing(cluster: Cluster, installed_with_kueue: Product, steps: Steps) -> AsyncIterator[None]:
    """Kueue with fair sharing, during one test."""
    await install(cluster, [Kueue(configuration=_SHARES)], steps)
    yield
    await install(cluster, [Kueue()], steps)


@pytest.mark.exhaustive  # Kueue is installed twice for it
async def test_group_beyond_its_fair_share_gives_way_and_loses_nothing(
    namespace: Namespace, toolbox: str, fair_sharing: None
) -> None:
    async with (
        groups(namespace, _NOTHING_OF_THEIR_OWN),
        Following.of(namespace, "md-1") as first,
        Following.of(namespace, "md-2") as second,
    ):
        for name in ("md-1", "md-2"):
            await namespace.apply(indexed_job(name, "bio", toolbox, *counting(), pods=2))
        await begun(first, 0, 1)
        await begun(second, 0, 1)

        await reclaim(namespace, toolbox)

        for name, following in (("md-1", first), ("md-2", second)):
            await completed(namespace, name)
            await asyncio.wait_for(following.read(), patient(60))
            assert [following.lines(index) for index in (0, 1)] == [ALL, ALL]
        runs = sorted(len(following.nodes[0]) for following in (first, second))
        assert runs == [1, 2], "one of bio's Jobs gave way, the other was left alone"
        assert await _reasons(namespace) == {"InCohortFairSharing"}


async def test_lower_priorities_in_one_queue_give_way_together_and_lose_nothing(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with (
        priorities(namespace, low=1, high=1000),
        groups(namespace, {"bio": "800m"}),
        Following.of(namespace, "md-1") as first,
        Following.of(namespace, "md-2") as second,
    ):
        of_low, of_high = ({PRIORITY_LABEL: f"{namespace.name}-{name}"} for name in ("low", "high"))
        for name in ("md-1", "md-2"):
            await namespace.apply(indexed_job(name, "bio", toolbox, *counting(counts=None), pods=2, labels=of_low))
        await begun(first, 0, 1)
        await begun(second, 0, 1)

        urgent = indexed_job("urgent", "bio", toolbox, "python3", "-c", "print('done')", pods=4, labels=of_high)
        await namespace.apply(urgent)
        await namespace.wait("batch/v1", "Job", "urgent", has_condition("Complete"), within=120)

        for name, following in (("md-1", first), ("md-2", second)):
            await enough(namespace, following, name, 2)
            eviction = Eviction.of(audit, namespace.name, name)
            assert len(eviction.suspended) == 1
            assert eviction.refused
        assert await _reasons(namespace) == {"InClusterQueue"}
        await _assert_released_together(namespace)


async def _assert_released_together(namespace: Namespace) -> None:
    """Neither is evicted before both are saved: what the preemptor cannot use yet is not given up."""
    holds = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert len(holds) == 2
    assert len({one["spec"]["releaseGroup"] for one in holds}) == 1
    assert len(checkpoints) == 4
    assert max(one["status"]["commitTime"] for one in checkpoints) <= min(one["status"]["releaseTime"] for one in holds)


async def _reasons(namespace: Namespace) -> set[str]:
    holds = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
    return {one["spec"]["reason"] for one in holds}
