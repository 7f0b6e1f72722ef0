"""Snapshots go with their Checkpoints, and those with their Job where nothing else can ever continue from them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import is_gone, wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.bucket import manifests
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import reclaim

pytestmark = pytest.mark.any_shape

_PODS = 4


async def _preempted_and_completed(namespace: Namespace, image: str, env: Mapping[str, str]) -> None:
    """A Job of bio that has been away, and has done all its work."""
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", image, *counting(counts=None), pods=_PODS, env=env))
        await begun(bio, *range(_PODS))
        await reclaim(namespace, image)
        await enough(namespace, bio, "md", _PODS)


async def _checkpoints(namespace: Namespace) -> list[Object]:
    return await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)


async def test_snapshots_of_a_jobs_own_id_go_with_the_job(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster
) -> None:
    await _preempted_and_completed(namespace, toolbox, {})
    job = await namespace.get("batch/v1", "Job", "md")
    checkpoints = await _checkpoints(namespace)
    assert len(checkpoints) == len(await manifests(cluster, namespace.api, namespace.name)) == _PODS
    for one in checkpoints:
        assert [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        assert one["metadata"]["finalizers"] == [names.SNAPSHOT_CLEANUP]

    await namespace.kubectl("delete", "job", "md")

    await wait_for_all(
        namespace.api, API_VERSION, "Checkpoint", lambda found: not found, namespace=namespace.name, within=120
    )
    assert await manifests(cluster, namespace.api, namespace.name) == []


@pytest.mark.exhaustive  # those of a Job are tried each time
async def test_snapshots_of_an_id_that_a_person_gave_stay_until_their_checkpoints_are_deleted(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster
) -> None:
    await _preempted_and_completed(namespace, toolbox, {CHECKPOINT_VARIABLE: "protein"})
    kept = await manifests(cluster, namespace.api, namespace.name)
    assert len(kept) == _PODS

    await namespace.kubectl("delete", "job", "md")

    await namespace.wait("batch/v1", "Job", "md", is_gone)
    first, *others = await _checkpoints(namespace)
    assert all("ownerReferences" not in one["metadata"] for one in (first, *others))
    assert all("deletionTimestamp" not in one["metadata"] for one in (first, *others))
    assert await manifests(cluster, namespace.api, namespace.name) == kept

    await namespace.kubectl("delete", "cckpt", first["metadata"]["name"], "--timeout=120s")
    left = await manifests(cluster, namespace.api, namespace.name)
    assert len(left) == len(others)
    assert set(left) < set(kept)

    await namespace.kubectl("delete", "cckpt", "--all", "--timeout=120s")
    assert await manifests(cluster, namespace.api, namespace.name) == []


async def test_namespace_goes_with_all_its_snapshots(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster
) -> None:
    await _preempted_and_completed(namespace, toolbox, {CHECKPOINT_VARIABLE: "protein"})
    assert len(await manifests(cluster, namespace.api, namespace.name)) == _PODS

    await namespace.kubectl("delete", "namespace", namespace.name, "--timeout=180s")

    assert await manifests(cluster, namespace.api, namespace.name) == []
