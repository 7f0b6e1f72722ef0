"""While no webhook answers: Kueue's suspension goes through, and pods are saved from their preStop hooks."""

from __future__ import annotations

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Api
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed
from tests.e2e.product.webhooks_away import no_webhooks

_PODS = 4


@pytest.mark.any_shape
async def test_suspension_that_nobody_held_costs_no_work(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(counts=None), pods=_PODS))
        await begun(bio, *range(_PODS))
        async with no_webhooks(api):
            # it keeps its place until the webhooks are back, without which md would come back cold
            await namespace.apply(indexed_job("train", "ml", toolbox, "sleep", "3600", pods=2))
            await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=_PODS)
        await namespace.delete("batch/v1", "Job", "train")
        await enough(namespace, bio, "md", _PODS)
        restores = await api.objects(API_VERSION, "Restore", namespace.name)
        assert [one["status"].get("cold", False) for one in restores] == [False] * _PODS


@pytest.mark.any_shape
async def test_pod_that_is_created_meanwhile_says_so_and_is_saved_all_the_same(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        async with no_webhooks(api):
            await namespace.apply(indexed_job("md", "bio", toolbox, *counting(counts=None), pods=_PODS))
            await begun(bio, *range(_PODS))
            await wait_for_messages(namespace, "md", "MissedByWebhook")
            alone = [{"name": CHECKPOINT_VARIABLE, "value": "alone"}]
            await namespace.apply(pod("alone", container(toolbox, "sleep", "3600", env=alone)))
            (said,) = await wait_for_messages(namespace, "alone", "MissedByWebhook")
            assert said.endswith("delete it and create it again")
        await namespace.apply(indexed_job("train", "ml", toolbox, "true", pods=2))
        await completed(namespace, "train")
        await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=_PODS)
        await enough(namespace, bio, "md", _PODS)
