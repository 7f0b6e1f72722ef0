"""Volcano's other ways to take a place: a higher priority in the same queue, and what queues of a tree deserve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster.addons.catalog import install
from tests.cluster.addons.volcano import Volcano
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.urgency import urgency
from tests.e2e.product.volcano_queues import CAPACITY, RECLAIMS, completed, groups, queues, vcjob

pytestmark = pytest.mark.shape("volcano")

ASKED = {"CEDANA_CHECKPOINT": "md"}
Configure = Callable[[str], Awaitable[None]]


@pytest_asyncio.fixture(loop_scope="session")
async def configured(cluster: Cluster, release: Product, steps: Steps) -> Configure:
    """The product beside Volcano, whose scheduler is told the configuration."""

    async def configure(scheduler: str) -> None:
        await release.ensure(volcano={"enabled": True})
        await install(cluster, [Volcano(scheduler)], steps)

    return configure


async def _continue(namespace: Namespace, bio: Following) -> None:
    """Of four pods two were preempted, and all have counted without a gap."""
    await enough(namespace, bio, "md", 4, completed=completed)
    assert sorted(len(bio.pods[index]) for index in range(4)) == [1, 1, 2, 2]


@pytest.mark.exhaustive  # programs are preempted so each time
async def test_a_higher_priority_takes_the_place_of_pods_of_its_own_queue(
    namespace: Namespace, toolbox: str, configured: Configure
) -> None:
    await configured(RECLAIMS)
    async with groups(namespace, "bio"), urgency(namespace) as urgent, Following.of(namespace, "md") as bio:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(counts=None), pods=4, env=ASKED))
        await begun(bio, *range(4))
        soon = vcjob("soon", "bio", namespace, toolbox, "true", pods=2, at_least=2, priority=urgent)
        await namespace.apply(soon)
        await completed(namespace, "soon")
        await _continue(namespace, bio)


async def test_a_queue_takes_back_what_it_deserves_in_a_tree_of_queues(
    namespace: Namespace, toolbox: str, configured: Configure
) -> None:
    await configured(CAPACITY)
    half = {"deserved": {"cpu": "7", "memory": "4Gi"}}
    tree: dict[str, dict[str, Any]] = {
        "lab": {"deserved": {"cpu": "14", "memory": "8Gi"}},
        "bio": {"parent": "lab", **half},
        "ml": {"parent": "lab", **half},
    }
    async with queues(namespace, tree), Following.of(namespace, "md") as bio:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(counts=None), pods=4, env=ASKED))
        await begun(bio, *range(4))
        await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
        await completed(namespace, "train")
        await _continue(namespace, bio)
