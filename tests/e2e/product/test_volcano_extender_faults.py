"""Our extender dies, or does not answer in time, while pods are being saved for its sake: no work is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cedana_sched.model.records import CheckpointStep, HoldStep
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import parts
from tests.e2e.product.counting import LARGE, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import reached, released_in_time
from tests.e2e.product.rendering import NAMESPACE
from tests.e2e.product.volcano_extender import SELECTOR, asked_in_vain, stopped_extender
from tests.e2e.product.volcano_queues import completed, groups, reclaim, vcjob

pytestmark = pytest.mark.shape("volcano")

PODS = 4


@asynccontextmanager
async def preempting(namespace: Namespace, image: str, kind: str, step: str) -> AsyncIterator[None]:
    """Pods of bio make room for ml: inside the block they are saved as far as this, at its end ml has had their place.

    All of bio's work is done then, and none of it twice.
    """
    async with groups(namespace), Following.of(namespace, "md") as bio:
        work = counting(mebibytes=LARGE, counts=None)
        await namespace.apply(vcjob("md", "bio", namespace, image, *work, pods=PODS, env={"CEDANA_CHECKPOINT": "md"}))
        await begun(bio, *range(PODS), counts=5)
        async with asyncio.TaskGroup() as group:
            group.create_task(reclaim(namespace, image), name="ml")
            await reached(namespace, kind, step)
            yield
        await enough(namespace, bio, "md", PODS, completed=completed)
        await released_in_time(namespace)
        moved = [index for index in range(PODS) if len(bio.pods[index]) > 1]
        assert len(moved) == 2, "as many as ml needs, and no more"


async def test_extender_that_starts_anew_goes_on_with_those_that_are_being_saved(
    namespace: Namespace, toolbox: str, installed_with_extender: Product, cluster: Cluster, api: Api
) -> None:
    async with preempting(namespace, toolbox, "Checkpoint", CheckpointStep.DUMPING):
        await parts.signal_all(cluster, api, NAMESPACE, SELECTOR)


@pytest.mark.exhaustive
async def test_extender_that_answers_too_late_costs_time_and_no_work(
    namespace: Namespace, toolbox: str, installed_with_extender: Product, audit: Audit
) -> None:
    async with (
        preempting(namespace, toolbox, "PreemptionHold", HoldStep.HOLDING),
        stopped_extender(installed_with_extender),
    ):
        await asked_in_vain(namespace)
        assert audit.writes(namespace=namespace.name, resource="pods", verb="delete") == []
