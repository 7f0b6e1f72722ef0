"""A namespace that is made again under its name begins with nothing, and loses nothing by what the one before had."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import is_gone, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = [
    pytest.mark.any_shape,
    pytest.mark.exhaustive,  # units show it each time; two namespaces come and go
]


async def _preempted_and_completed(namespace: Namespace, image: str) -> Following:
    """A Job of a person's own id that has been away once, and has done all its work."""
    async with groups(namespace), Following.of(namespace, "md") as bio:
        job = indexed_job("md", "bio", image, *counting(), cpu="600m", env={CHECKPOINT_VARIABLE: "protein"})
        await namespace.apply(job)
        await begun(bio, 0)
        for kind in ("Checkpoint", "Restore"):
            assert await namespace.api.objects(API_VERSION, kind, namespace.name) == [], "it starts as a first one does"
        await reclaim(namespace, image)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
    return bio


async def test_namespace_that_is_made_again_continues_its_own_snapshots_alone(
    cluster: Cluster, api: Api, toolbox: str, installed_with_kueue: Product
) -> None:
    name = f"made-again-{uuid.uuid4().hex[:5]}"
    noted = []
    for _ in range(2):
        async with Namespace.created(cluster, api, name) as namespace:
            uid = (await api.get("v1", "Namespace", name))["metadata"]["uid"]
            bio = await _preempted_and_completed(namespace, toolbox)
            assert bio.lines(0) == ALL, "each number once: from the beginning, and on from its own snapshot"
            assert len(bio.pods[0]) == 2
            [saved] = await api.objects(API_VERSION, "Checkpoint", name)
            assert saved["status"]["snapshot"]["generation"] == 1
            assert saved["spec"]["namespaceUID"] == uid
            [restored] = await wait_for_messages(namespace, bio.pods[0][1], "Restored")
            assert "protein/0@1" in restored
            assert not [one for one in await namespace.events() if one["reason"] == "ColdStart"]
            noted.append(uid)
        await wait_for(api, "v1", "Namespace", name, is_gone, within=180)
    assert len(set(noted)) == 2
