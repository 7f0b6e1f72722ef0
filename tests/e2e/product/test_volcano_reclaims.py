"""Volcano reclaims what one queue has borrowed, with its own tiers: nothing of the work is lost."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.addons.catalog import install
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product.counting import ALL, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.volcano_queues import RECLAIMS, SCHEDULER, completed, groups, vcjob

pytestmark = pytest.mark.shape("volcano")

ASKED = {"CEDANA_CHECKPOINT": "md"}


@pytest_asyncio.fixture(loop_scope="session")
async def product(volcano_that_reclaims: None, installed: Product) -> Product:
    """The product beside Volcano."""
    await installed.ensure(volcano={"enabled": True})
    return installed


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def volcano_that_reclaims(cluster: Cluster, steps: Steps) -> None:
    """Volcano with the actions that preempt."""
    await install(cluster, [Volcano(RECLAIMS)], steps)


async def test_reclaimed_pods_continue_where_they_stopped(
    namespace: Namespace, toolbox: str, product: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(), pods=4, env=ASKED))
        await begun(bio, *range(4))
        await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
        await completed(namespace, "train")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), 60)

        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        moved = [index for index in range(4) if len(bio.pods[index]) == 2]
        assert len(moved) == 2, "as many as ml needs, and no more"
        checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
        assert sorted(one["spec"]["identity"]["index"] for one in checkpoints if _is_good(one)) == moved
        assert _refused(audit, namespace), "held at the write of the pod's status"


def _is_good(checkpoint: Object) -> bool:
    return bool(checkpoint["status"]["phase"] == "Ready")


def _refused(audit: Audit, namespace: Namespace) -> list[Write]:
    writes = audit.writes(namespace=namespace.name, resource="pods/status")
    return [one for one in writes if one.user == SCHEDULER and one.code == 429]
